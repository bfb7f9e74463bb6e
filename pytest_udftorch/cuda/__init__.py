"""Eager CUDA operators: the kernels that a session puts in their place, and what they count."""
