"""Benches, each of which reproduces one named table or figure, and the demo."""
