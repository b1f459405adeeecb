"""Versions of installed packages."""

from functools import cache
from importlib.metadata import PackageNotFoundError, version


@cache
def find_version(package: str = "graphile-worker") -> str:
    """Return the version of a package, by default of this one."""
    try:
        return version(package)
    except PackageNotFoundError:
        # A frozen program, or one with a copy of the package, has no metadata.
        return "unknown"
