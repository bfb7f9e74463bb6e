"""Operators of torch overridden through the dispatcher."""
