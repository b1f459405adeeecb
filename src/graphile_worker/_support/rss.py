"""The memory of a process."""

import os
import subprocess
from pathlib import Path

MEGABYTE = 1024 * 1024

PAGE_SIZE_BYTES = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 0


def read_resident_bytes(pid: int) -> int | None:
    """Return the resident memory of a process, without its children, or None if it is unknown."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE_SIZE_BYTES
    except (OSError, ValueError, IndexError):
        return _read_from_ps(pid)


def _read_from_ps(pid: int) -> int | None:
    command = ["ps", "-o", "rss=", "-p", str(pid)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=5)
        return int(done.stdout) * 1024
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return None
