"""Data sets, their splits among clients, and the federation that engines train on."""
