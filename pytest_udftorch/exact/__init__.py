"""Number formats, correct rounding, the assertions, and the inputs of tests."""
