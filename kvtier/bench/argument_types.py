"""Types of command-line arguments, which refuse what means nothing."""

import argparse


def positive(text: str) -> int:
    """Returns a whole number from 1 on. Raises ArgumentTypeError."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {value}")
    return value


def seconds(text: str) -> float:
    """Returns seconds, a day at most. Raises ArgumentTypeError."""
    value = float(text)
    if not 0 <= value <= 86400:
        raise argparse.ArgumentTypeError(f"must be 0 to 86400, got {value}")
    return value
