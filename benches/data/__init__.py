"""Data of the benches: digits, photographs, text, models and libraries."""
