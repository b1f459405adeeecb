"""Failpoints: named places in the program where a test can make it fail.

A failpoint does nothing until code in the same process installs a hook. No option, file or
environment variable installs one.
"""

from collections.abc import Callable

_hook: Callable[[str], None] | None = None


def failpoint(name: str) -> None:
    if _hook is not None:
        _hook(name)


def install_hook(hook: Callable[[str], None] | None) -> None:
    """Call `hook` with the name of each failpoint that is reached. None removes the hook."""
    global _hook
    _hook = hook
