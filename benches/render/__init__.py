"""Stored figures as tables, pages and pictures."""
