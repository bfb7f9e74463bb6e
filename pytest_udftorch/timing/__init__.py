"""Synchronised timing: timers, layers, and what the machine is."""
