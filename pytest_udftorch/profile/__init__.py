"""Profiles: counting, aggregation, export and reports."""
