"""Pipes to and from programs, watched by an event loop."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

CHUNK_BYTES = 16 * 1024


class PipeEnds(NamedTuple):
    """The file descriptors of a pipe."""

    read: int
    write: int


class Pipes:
    """Standard input, output and error of a program."""

    def __init__(self) -> None:
        self._open_descriptors: set[int] = set()
        try:
            self._input, self._output, self._errors = (self._create_pipe() for _ in range(3))
        except OSError:
            self._close(*self._open_descriptors)
            raise

    @classmethod
    @contextmanager
    def open(cls) -> Iterator["Pipes"]:
        pipes = cls()
        try:
            yield pipes
        finally:
            pipes._close(*pipes._open_descriptors)

    def get_child_ends(self) -> dict[str, int]:
        return {
            "stdin": self._input.read,
            "stdout": self._output.write,
            "stderr": self._errors.write,
        }

    def close_child_ends(self) -> None:
        """Close the ends of the program, so that its exit closes the pipes."""
        self._close(*self.get_child_ends().values())

    @property
    def output(self) -> AsyncIterator[bytes]:
        return read_chunks(self._output.read)

    @property
    def errors(self) -> AsyncIterator[bytes]:
        return read_chunks(self._errors.read)

    async def write(self, data: bytes) -> None:
        """Write the input and close it. A program need not read it."""
        loop = asyncio.get_running_loop()
        end, remaining = self._input.write, memoryview(data)
        os.set_blocking(end, False)
        with suppress(BrokenPipeError):
            while remaining:
                try:
                    remaining = remaining[os.write(end, remaining) :]
                except BlockingIOError:
                    await _wait_until_ready(loop.add_writer, loop.remove_writer, end)
        self._close(end)

    def _create_pipe(self) -> PipeEnds:
        ends = PipeEnds(*os.pipe())
        self._open_descriptors.update(ends)
        return ends

    def _close(self, *ends: int) -> None:
        for end in self._open_descriptors.intersection(ends):
            self._open_descriptors.remove(end)
            os.close(end)


async def read_chunks(end: int) -> AsyncIterator[bytes]:
    """Yield the output of a pipe as it arrives."""
    loop = asyncio.get_running_loop()
    os.set_blocking(end, False)
    while True:
        await _wait_until_ready(loop.add_reader, loop.remove_reader, end)
        with suppress(BlockingIOError):
            chunk = os.read(end, CHUNK_BYTES)
            if not chunk:
                return
            yield chunk


async def _wait_until_ready(
    watch: Callable[..., Any], unwatch: Callable[[int], Any], end: int
) -> None:
    ready = asyncio.get_running_loop().create_future()
    watch(end, _set_ready, ready)
    try:
        await ready
    finally:
        unwatch(end)


def _set_ready(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)
