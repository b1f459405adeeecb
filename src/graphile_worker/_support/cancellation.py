"""Cancellation of asyncio tasks."""

import asyncio


def is_being_cancelled() -> bool:
    """Was the current task canceled? If not, a CancelledError comes from what it awaited."""
    current = asyncio.current_task()
    return current is not None and current.cancelling() > 0
