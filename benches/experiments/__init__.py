"""The measurements, each a command that stores its figures."""
