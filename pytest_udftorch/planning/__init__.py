"""Which layers to compile: executors, pairs, and plans."""
