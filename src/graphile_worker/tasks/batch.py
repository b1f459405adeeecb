"""BatchTask: its payload is an array; it says how each item went, and those that failed stay."""

import inspect
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Generic, overload

from graphile_worker.errors import ConfigurationError
from graphile_worker.jobs import Job, JobSpec
from graphile_worker.payloads import Mismatch
from graphile_worker.tasks.context import JobContext
from graphile_worker.tasks.outcomes import Batch
from graphile_worker.tasks.signatures import Signature, function_name
from graphile_worker.tasks.task import Task, warn_if_in_loop

if sys.version_info >= (3, 13):
    from typing import TypeVar
else:
    from typing_extensions import TypeVar

Item = TypeVar("Item")
D = TypeVar("D", default=None)

# By which tracing, here and in the Rust worker, marks an item; it belongs to the queue.
TRACE_KEY = "_trace"

# One for each item, in their order; None, for one or for all: it went well.
Outcomes = Sequence[BaseException | None] | None


class BatchTask(Task[[Sequence[Item]], Any], Generic[Item]):
    """A task of many items: `enqueue([…])` adds them as one job."""

    def accumulate(self, *items: Item, key: str, within: timedelta, conn: object = None) -> Job:
        """Put items into the job of that key that waits, or else into a new one that runs then."""
        warn_if_in_loop(f"{self.identifier}.aaccumulate")
        spec = self._gathering(items, key, within)
        return self._find_enqueuer().enqueue(spec, self._conn if conn is None else conn)

    async def aaccumulate(
        self, *items: Item, key: str, within: timedelta, conn: object = None
    ) -> Job:
        """`accumulate` for async code."""
        spec = self._gathering(items, key, within)
        return await self._find_enqueuer().aenqueue(spec, self._conn if conn is None else conn)

    def _gathering(self, items: Sequence[Item], key: str, within: timedelta) -> JobSpec:
        if not isinstance(within, timedelta):
            raise ConfigurationError(f"within must be a timedelta, got {within!r}")
        # Payloads that are arrays are appended; the time at which the first one is due stays.
        gathering = self.using(job_key=key, job_key_mode="preserve_run_at", run_at=within)
        return gathering.spec(items)


class Items(list[Any]):
    """The items of a payload that can be read, where they stood, and what is wrong with others."""

    def __init__(self) -> None:
        super().__init__()
        self.places: list[int] = []
        self.errors: dict[int, Mismatch] = {}


class BatchSignature(Signature):
    """One parameter, after the context: all items, read one by one."""

    def __init__(self, fn: Callable[..., Any], task: str | None = None) -> None:
        super().__init__(fn, task)
        found = [(each.kind in _ONE, each.default is _REQUIRED) for each in self._parameters]
        if found != [(True, True)]:
            raise ConfigurationError(
                f"{function_name(fn)}: a batch task has one parameter for its items, without a "
                "default, after the context if any"
            )

    def payload(self, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        (given,) = self._bound(args, kwargs).arguments.values()
        if isinstance(given, str | bytes | Mapping) or not isinstance(given, Sequence):
            raise self._refusal(Mismatch("", "expected a list of items"), given)
        return self.checked(list(given))

    def try_on(self, payload: Any) -> None:
        for misfit in self._items(payload).errors.values():
            raise misfit

    def arguments(self, payload: Any) -> tuple[list[Any], dict[str, Any]]:
        items = self._items(payload)
        if payload and not items:
            # Nothing to call the task with.
            first = next(iter(items.errors.values()))
            raise Mismatch(first.path, f"{first.reason}; no other item fits either")
        return [items], {}

    def batch(self, args: Sequence[Any]) -> Batch | None:
        items: Items = args[-1]
        return Batch(items.places, items.errors)

    def _items(self, payload: Any) -> Items:
        if not isinstance(payload, list):
            kind = type(payload).__name__
            raise Mismatch("", f"expected an array of items, got {kind}")
        read = self._resolved()[self._parameters[0].name]
        items = Items()
        for position, raw in enumerate(payload):
            try:
                (item,) = read([_unmarked(raw)])
            except Mismatch as misfit:
                misfit.path = f"[{position}]{misfit.path.removeprefix('[0]')}"
                items.errors[position] = misfit
            else:
                items.append(item)
                items.places.append(position)
        return items


def _unmarked(item: Any) -> Any:
    if not isinstance(item, dict) or TRACE_KEY not in item:
        return item
    # Another one: who asks for the payload of the job gets all of it.
    return {key: value for key, value in item.items() if key != TRACE_KEY}


_ONE = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_REQUIRED = inspect.Parameter.empty


class BatchDecorator(Generic[D]):
    """What `@tasks.batch_task(…)` returns."""

    def __init__(self, add: Callable[[Any], Any]) -> None:
        self._add = add

    @overload
    def __call__(
        self, fn: Callable[[JobContext[D], list[Item]], Outcomes | Awaitable[Outcomes]], /
    ) -> BatchTask[Item]: ...
    @overload
    def __call__(
        self, fn: Callable[[list[Item]], Outcomes | Awaitable[Outcomes]], /
    ) -> BatchTask[Item]: ...
    def __call__(self, fn: Any, /) -> Any:
        return self._add(fn)
