"""This module lists what may become of a sample that is to be stored in a cache."""

STORED, BUSY, UNFIT, BEYOND, REFUSED = range(5)
"""It was stored; somebody else is at it; it differs from the others; it is beyond the limit; nothing can be stored."""
