"""Which event loop a worker of the command runs on; in a program of yours, the loop is yours."""

import asyncio
import logging
import sys
from collections.abc import Callable

from graphile_worker.errors import ConfigurationError

LoopFactory = Callable[[], asyncio.AbstractEventLoop]

logger = logging.getLogger("graphile_worker")


def choose_loop_factory(name: str | None) -> LoopFactory | None:
    """What makes the loop: uvloop unless it is not there or not wanted; None is asyncio's own."""
    found = None if name == "asyncio" else _load_uvloop()
    if found is None and name == "uvloop":
        raise ConfigurationError(
            "--loop uvloop: it is not installed: pip install graphile-worker[uvloop]"
        )
    logger.debug("the event loop is that of %s", "asyncio" if found is None else "uvloop")
    return found


def _load_uvloop() -> LoopFactory | None:
    if sys.platform == "win32":
        return None
    try:
        import uvloop
    except ImportError:
        return None
    factory: LoopFactory = uvloop.new_event_loop
    return factory
