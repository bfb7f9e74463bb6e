"""Correct rounding proved on all inputs: runs, certificates and references."""
