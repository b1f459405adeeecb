"""Workers in the process of a test: record their events, wait for them, and stop the workers."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from graphile_worker import Hooks, Runner, WorkerOptions
from graphile_worker._worker_config import WorkerTimings
from graphile_worker.events import Event
from tests.support.timings import DEFAULT_TIMINGS, set_timings

E = TypeVar("E", bound=Event)
Start = Callable[..., Awaitable[Runner]]

# Only a bug takes longer, even on a busy machine.
TIMEOUT_SECONDS = 20.0

# Between two looks of `wait_until`.
MIN_POLL_SECONDS = 0.01
MAX_POLL_SECONDS = 0.1

# What is alive is an argument, what could be written in a file an option.
RUNNER_ARGUMENTS = ("lifespan", "hooks", "forbidden_flags", "logger", "handle_signals", "migrate")


class Recorder:
    """Listens to everything that goes through some hooks.

    Use it in the loop that the events come from.
    """

    def __init__(self, hooks: Hooks | None = None) -> None:
        self.hooks = hooks or Hooks()
        self.events: list[Event] = []
        self._more = asyncio.Event()
        self.hooks.on(Event)(self._record)

    @property
    def names(self) -> list[str]:
        return [event.name for event in self.events]

    def events_of(self, kind: type[E], **facts: Any) -> list[E]:
        """Return the events of a kind with these values; `job_id` is the id of the job."""
        return [each for each in self.events if isinstance(each, kind) and _has(each, facts)]

    async def wait_for(
        self,
        kind: type[E],
        *,
        count: int = 1,
        timeout: float = TIMEOUT_SECONDS,  # noqa: ASYNC109  # the error lists the events
        **facts: Any,
    ) -> list[E]:
        """Wait until there are `count` events of a kind, and return them."""
        try:
            async with asyncio.timeout(timeout):
                while len(found := self.events_of(kind, **facts)) < count:
                    self._more.clear()
                    await self._more.wait()
        except TimeoutError:
            wanted = f"{count} of {kind.__name__} {facts or ''}"
            raise AssertionError(f"waited for {wanted}, got only {self.names}") from None
        return found

    def clear(self) -> None:
        """Count from here."""
        self.events.clear()

    def _record(self, event: Event) -> None:
        self.events.append(event)
        self._more.set()


@asynccontextmanager
async def open_runners(
    database: Any, hooks: Hooks, timings: WorkerTimings = DEFAULT_TIMINGS
) -> AsyncIterator[Start]:
    """A function that starts workers on a database; those that still run at the end are killed.

    It takes tasks, and by name what `Runner` takes or `WorkerOptions` do; `on` is another way to
    reach the database, such as a pool. `timings` are the timings of workers without their own.
    """
    started: list[Runner] = []
    default = timings

    async def start(
        tasks: Any, *, on: object = None, timings: WorkerTimings = default, **given: Any
    ) -> Runner:
        live = {name: given.pop(name) for name in RUNNER_ARGUMENTS if name in given}
        options = WorkerOptions(**{"schema": database.schema, **given})
        runner = Runner(on or database.dsn, tasks, options=options, **{"hooks": hooks, **live})
        started.append(set_timings(runner, timings))
        return await runner.start()

    try:
        yield start
    finally:
        # What ended them is the test's affair, if it wants to know.
        await asyncio.gather(*(runner.kill() for runner in started), return_exceptions=True)


async def wait_until(condition: Callable[[], object], within: float = TIMEOUT_SECONDS) -> None:
    """Wait until a condition without an event is true, for example a row in a table."""
    started_at = time.monotonic()
    while not condition():
        waited = time.monotonic() - started_at
        assert waited < within, "it did not come to pass"
        # Looking costs CPU time, so a test that waits long looks less often.
        await asyncio.sleep(min(max(MIN_POLL_SECONDS, waited / 10), MAX_POLL_SECONDS))


def _has(event: Event, facts: dict[str, Any]) -> bool:
    return all(_get_value(event, name) == wanted for name, wanted in facts.items())


def _get_value(event: Any, name: str) -> Any:
    return event.job.id if name == "job_id" else getattr(event, name)
