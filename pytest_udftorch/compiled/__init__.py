"""Compilers inside this process that follow the open sessions."""
