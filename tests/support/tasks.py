"""Tasks that many tests run."""

import asyncio
from typing import Any


async def nothing(payload: object) -> None: ...


async def endless(payload: object) -> None:
    await asyncio.Event().wait()


class Gate:
    """A task whose jobs start, and end when a test opens the gate."""

    def __init__(self) -> None:
        self.began: list[Any] = []
        self._open = asyncio.Event()

    async def pass_through(self, payload: Any) -> None:
        self.began.append(payload["n"])
        await self._open.wait()

    def open(self) -> None:
        self._open.set()
