"""What the benches run on: digits, photographs, text, models and libraries."""
