"""Cancellation of asyncio tasks."""

import asyncio


def is_being_cancelled() -> bool:
    """Return whether the current task was canceled.

    If not, a CancelledError comes from the coroutine that the task awaited.
    """
    current = asyncio.current_task()
    return current is not None and current.cancelling() > 0
