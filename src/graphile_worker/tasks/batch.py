"""BatchTask: its payload is an array; it says how each item went, and those that failed stay."""

import inspect
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Generic, overload

from graphile_worker._payloads import Mismatch
from graphile_worker.errors import ConfigurationError
from graphile_worker.jobs import Job, JobSpec
from graphile_worker.tasks.batch_results import BatchItems
from graphile_worker.tasks.context import JobContext
from graphile_worker.tasks.signatures import Signature, get_function_name
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

    def accumulate(self, *items: Item, key: str, delay: timedelta, conn: object = None) -> Job:
        """Put items into the job of that key that waits, or else into a new one that runs then."""
        warn_if_in_loop(f"{self.identifier}.aaccumulate")
        spec = self._build_accumulate_spec(items, key, delay)
        return self._find_enqueuer().enqueue(spec, self._conn if conn is None else conn)

    async def aaccumulate(
        self, *items: Item, key: str, delay: timedelta, conn: object = None
    ) -> Job:
        """`accumulate` for async code."""
        spec = self._build_accumulate_spec(items, key, delay)
        return await self._find_enqueuer().aenqueue(spec, self._conn if conn is None else conn)

    def _build_accumulate_spec(self, items: Sequence[Item], key: str, delay: timedelta) -> JobSpec:
        if not isinstance(delay, timedelta):
            raise ConfigurationError(f"delay must be a timedelta, got {delay!r}")
        # Payloads that are arrays are appended; the time at which the first one is due stays.
        gathering = self.using(job_key=key, job_key_mode="preserve_run_at", run_at=delay)
        return gathering.spec(items)


class ParsedItems(list[Any]):
    """The items of a payload that can be read, where they stood, and what is wrong with others."""

    def __init__(self) -> None:
        super().__init__()
        self.positions: list[int] = []
        self.errors: dict[int, Mismatch] = {}


class BatchSignature(Signature):
    """One parameter, after the context: all items, read one by one."""

    def __init__(self, fn: Callable[..., Any], task: str | None = None) -> None:
        super().__init__(fn, task)
        found = [
            (each.kind in _ITEM_PARAMETER_KINDS, each.default is _NO_DEFAULT)
            for each in self._parameters
        ]
        if found != [(True, True)]:
            raise ConfigurationError(
                f"{get_function_name(fn)}: a batch task has one parameter for its items, without a "
                "default, after the context if any"
            )

    def build_payload(self, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        (given,) = self._bind(args, kwargs).arguments.values()
        if isinstance(given, str | bytes | Mapping) or not isinstance(given, Sequence):
            raise self._build_error(Mismatch("", "expected a list of items"), given)
        return self.normalize_payload(list(given))

    def check_payload(self, payload: Any) -> None:
        for misfit in self._parse_items(payload).errors.values():
            raise misfit

    def read_arguments(self, payload: Any) -> tuple[list[Any], dict[str, Any]]:
        items = self._parse_items(payload)
        if payload and not items:
            # Nothing to call the task with.
            first = next(iter(items.errors.values()))
            raise Mismatch(first.path, f"{first.reason}; no other item fits either")
        return [items], {}

    def get_batch(self, args: Sequence[Any]) -> BatchItems | None:
        items: ParsedItems = args[-1]
        return BatchItems(items.positions, items.errors)

    def _parse_items(self, payload: Any) -> ParsedItems:
        if not isinstance(payload, list):
            kind = type(payload).__name__
            raise Mismatch("", f"expected an array of items, got {kind}")
        read = self._resolve_readers()[self._parameters[0].name]
        items = ParsedItems()
        for position, raw in enumerate(payload):
            try:
                (item,) = read([_strip_trace(raw)])
            except Mismatch as misfit:
                misfit.path = f"[{position}]{misfit.path.removeprefix('[0]')}"
                items.errors[position] = misfit
            else:
                items.append(item)
                items.positions.append(position)
        return items


def _strip_trace(item: Any) -> Any:
    if not isinstance(item, dict) or TRACE_KEY not in item:
        return item
    # Another one: who asks for the payload of the job gets all of it.
    return {key: value for key, value in item.items() if key != TRACE_KEY}


_ITEM_PARAMETER_KINDS = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_NO_DEFAULT = inspect.Parameter.empty


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
