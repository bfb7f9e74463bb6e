"""The swap itself: the slots of the process, and sessions over them."""
