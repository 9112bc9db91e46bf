"""CutReason: why less of a hit is loaded than was found. A plain value."""

from enum import Enum


class CutReason(Enum):
    """Why less of a hit is loaded than was found."""

    DISK = "disk"
    """Computing it is faster than reading it, even were the disk idle."""
    QUEUE = "queue"
    """Reading it would be faster, but not behind what is being read already."""
    UNKNOWN = "unknown"
    """Nobody knows yet how fast the engine computes, and reading it takes long."""
