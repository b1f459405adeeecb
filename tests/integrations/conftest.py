"""Fixtures that the tests of integrations share."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from graphile_worker import App, WorkerOptions
from graphile_worker.runner import run_once
from tests.conftest import TestDatabase

Run = Callable[..., Awaitable[int]]


@pytest.fixture
def run(database: TestDatabase, app: App[None]) -> Run:
    """Run the jobs of the app that are ready, and return their number."""

    async def run(**more: Any) -> int:
        options = WorkerOptions(schema=database.schema)
        return await run_once(database.dsn, app, options=options, **more)

    return run
