"""Choose the event loop of a worker that the command runs."""

import asyncio
import logging
import sys
from collections.abc import Callable

from graphile_worker.errors import ConfigurationError

LoopFactory = Callable[[], asyncio.AbstractEventLoop]

logger = logging.getLogger("graphile_worker")


def choose_loop_factory(name: str | None) -> LoopFactory | None:
    """Return the loop factory of uvloop, or None for the loop of asyncio.

    Without a name, uvloop is chosen if it is installed.
    """
    factory = None if name == "asyncio" else _load_uvloop()
    if factory is None and name == "uvloop":
        raise ConfigurationError(
            "--loop uvloop: uvloop is not installed. Run pip install graphile-worker[uvloop]."
        )
    logger.debug("event loop: %s", "asyncio" if factory is None else "uvloop")
    return factory


def _load_uvloop() -> LoopFactory | None:
    if sys.platform == "win32":
        return None
    try:
        import uvloop
    except ImportError:
        return None
    factory: LoopFactory = uvloop.new_event_loop
    return factory
