"""What ``pytest benches/`` collects."""
