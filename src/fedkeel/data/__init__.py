"""Data sets, their partitions among clients, and the federation that engines train on."""
