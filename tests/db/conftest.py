"""Each rule about clients runs twice, async and blocking; workers run in the test's process."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.support.clients import KINDS, connected, opened, spy
from tests.support.recorder import Recorder, Start, runners_on


@pytest.fixture(params=KINDS)
def kind(request) -> str:
    name: str = request.param
    return name


@pytest.fixture
async def client(kind, database) -> AsyncIterator[Any]:
    async with opened(kind, database) as client:
        yield client


@pytest.fixture
async def conn(kind, database) -> AsyncIterator[Any]:
    async with connected(kind, database) as connection:
        yield connection


@pytest.fixture
def statements(monkeypatch) -> list[str]:
    """The names of the statements that clients send from now on."""
    return spy(monkeypatch)


@pytest.fixture
def recorder() -> Recorder:
    """What workers that `start` has started say."""
    return Recorder()


@pytest.fixture
async def start(database, recorder) -> AsyncIterator[Start]:
    """Run workers in this process, which stop with the test."""
    async with runners_on(database, recorder.hooks) as start:
        yield start
