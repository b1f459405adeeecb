"""Each rule about clients runs twice: async and blocking."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.support.clients import KINDS, connected, opened, spy


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
