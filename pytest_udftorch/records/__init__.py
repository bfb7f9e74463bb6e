"""The records of what the functions did, and the file that holds them."""
