"""Standard streams that are closed, or that nobody reads: no reason for a worker to end."""

import os
import sys


def open_standard_streams() -> None:
    """Let the three streams lead nowhere where they are closed.

    Otherwise a connection to the database would get the number of one, and whatever is printed.
    """
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    if sys.stdin is None:
        sys.stdin = open(0, closefd=False)  # noqa: SIM115
    if sys.stdout is None:
        sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115


def flush_standard_streams() -> None:
    """Write what was printed; what nobody reads goes nowhere, and is no error at the end."""
    for number, stream in ((1, sys.stdout), (2, sys.stderr)):
        try:
            stream.flush()
        except (OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), number)
