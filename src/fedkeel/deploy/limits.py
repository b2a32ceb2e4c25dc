"""Defaults of the limits that a server sets its clients."""

TIMEOUT = 600.0  # seconds: for a reply, and to wait for clients that are missing
LARGEST = 1e8  # the largest number that an upload may contain
