"""Which operators a session reaches."""
