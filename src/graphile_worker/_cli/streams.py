"""Keep a worker running when its standard streams are closed or have no reader."""

import os
import sys


def open_standard_streams() -> None:
    """Open closed standard streams on /dev/null.

    Otherwise a database connection could get file descriptor 1 or 2, and with it all output.
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
    """Flush standard output and standard error, and ignore a stream without a reader."""
    for number, stream in ((1, sys.stdout), (2, sys.stderr)):
        try:
            stream.flush()
        except (OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), number)
