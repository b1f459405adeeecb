"""BatchTask: one job with many items, of which only the failed ones are retried."""

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from graphile_worker._payloads import Mismatch
from graphile_worker.errors import ConfigurationError
from graphile_worker.jobs import Job, JobSpec
from graphile_worker.tasks.batch_results import BatchItems
from graphile_worker.tasks.context import D, Enqueuer, JobContext, SyncJobContext
from graphile_worker.tasks.signatures import Signature, get_function_name
from graphile_worker.tasks.task import Task, TaskOptions, warn_if_in_loop

if TYPE_CHECKING:
    from graphile_worker._payloads.json_schema import Schema, SchemaBuilder

Item = TypeVar("Item")

# Key under which this package and the Rust worker write the trace context into an item.
TRACE_KEY = "_trace"

# An error or None for each item in their order, or None if all items succeeded.
Outcomes = Sequence[BaseException | None] | None


class BatchTask(Task[[Sequence[Item]], Any], Generic[Item]):
    """A task with a list of items: `enqueue([…])` adds them as one job."""

    def __init__(
        self,
        identifier: str,
        fn: Callable[..., Any],
        options: TaskOptions,
        find_enqueuer: Callable[[], Enqueuer],
        signature: Signature | None = None,
    ) -> None:
        super().__init__(identifier, fn, options, find_enqueuer, signature)
        if options.retention is not None and options.retention.results:
            raise ConfigurationError(
                f"batch task {identifier!r} returns the outcomes of its items, not a result. "
                "Remove results=True from its retention."
            )

    def accumulate(self, *items: Item, key: str, delay: timedelta, conn: object = None) -> Job:
        """Append items to the waiting job with this key, or add a new one.

        Args:
            items: The items.
            key: Job key of the batch.
            delay: Delay from the first item to the run of the job.
            conn: Your connection, whose transaction the call joins.

        Returns:
            The job with all its items.

        Raises:
            ConfigurationError: `delay` is not a timedelta.
        """
        warn_if_in_loop(f"{self.identifier}.aaccumulate")
        spec = self._build_accumulate_spec(items, key, delay)
        return self._find_enqueuer().enqueue(spec, self._conn if conn is None else conn)

    async def aaccumulate(
        self, *items: Item, key: str, delay: timedelta, conn: object = None
    ) -> Job:
        """Append items from async code. See `accumulate`."""
        spec = self._build_accumulate_spec(items, key, delay)
        return await self._find_enqueuer().aenqueue(spec, self._conn if conn is None else conn)

    def _build_accumulate_spec(self, items: Sequence[Item], key: str, delay: timedelta) -> JobSpec:
        if not isinstance(delay, timedelta):
            raise ConfigurationError(f"delay must be a timedelta, got {delay!r}")
        # The database appends arrays of the same key, and keeps the run_at of the first one.
        task = self.using(job_key=key, job_key_mode="preserve_run_at", run_at=delay)
        return task.spec(items)


class ParsedItems(list[Any]):
    """The valid items of a payload, their positions, and the errors of the other items."""

    def __init__(self) -> None:
        super().__init__()
        self.positions: list[int] = []
        self.errors: dict[int, Mismatch] = {}


class BatchSignature(Signature):
    """The signature of a batch task: one parameter for the items, which are read one by one."""

    def __init__(self, fn: Callable[..., Any], task: str | None = None) -> None:
        super().__init__(fn, task)
        checks = [
            (each.kind in _ITEM_PARAMETER_KINDS, each.default is _NO_DEFAULT)
            for each in self._parameters
        ]
        if checks != [(True, True)]:
            raise ConfigurationError(
                f"{get_function_name(fn)}: a batch task takes its items in one parameter without "
                "a default, after the context if any"
            )

    @property
    def has_keys(self) -> bool:
        """Return False: payloads are arrays."""
        return False

    def build_payload(self, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        (items,) = self._bind(args, kwargs).arguments.values()
        if isinstance(items, str | bytes | Mapping) or not isinstance(items, Sequence):
            raise self._build_error(Mismatch("", "expected a list of items"), items)
        return self.normalize_payload(list(items))

    def check_payload(self, payload: Any) -> None:
        for mismatch in self._parse_items(payload).errors.values():
            raise mismatch

    def build_payload_schema(self, builder: "SchemaBuilder") -> "Schema":
        self._resolve_readers()
        (parameter,) = self._parameters
        items = _find_item_schema(builder.build(self._evaluate(parameter.annotation)), builder)
        return {"type": "array"} if items == {} else {"type": "array", "items": items}

    def read_arguments(self, payload: Any) -> tuple[list[Any], dict[str, Any]]:
        items = self._parse_items(payload)
        if payload and not items:
            # No item is left to call the task with.
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
            except Mismatch as mismatch:
                mismatch.path = f"[{position}]{mismatch.path.removeprefix('[0]')}"
                items.errors[position] = mismatch
            else:
                items.append(item)
                items.positions.append(position)
        return items


def _find_item_schema(schema: "Schema", builder: "SchemaBuilder") -> "Schema":
    """Return the schema of the items of an array, which the worker reads one by one."""
    schema = builder.resolve(schema)
    if "anyOf" in schema:
        # A list of int or a list of str: each item may be either.
        return builder.build_union([_find_item_schema(each, builder) for each in schema["anyOf"]])
    if "array" not in schema.get("type", "array"):
        return False
    if "prefixItems" in schema:
        return schema["prefixItems"][0] if schema.get("minItems", 0) <= 1 else False
    items: Schema = schema.get("items", {})
    return items


def _strip_trace(item: Any) -> Any:
    if not isinstance(item, dict) or TRACE_KEY not in item:
        return item
    # A copy, because the payload of the job keeps the key.
    return {key: value for key, value in item.items() if key != TRACE_KEY}


_ITEM_PARAMETER_KINDS = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_NO_DEFAULT = inspect.Parameter.empty


class BatchDecorator(Generic[D]):
    """The decorator that `@app.batch_task(…)` returns."""

    def __init__(self, add: Callable[[Any], Any]) -> None:
        self._add = add

    @overload
    def __call__(
        self, fn: Callable[[JobContext[D], list[Item]], Awaitable[Outcomes]], /
    ) -> BatchTask[Item]: ...
    @overload
    def __call__(
        self, fn: Callable[[SyncJobContext[D], list[Item]], Outcomes], /
    ) -> BatchTask[Item]: ...
    @overload
    def __call__(
        self, fn: Callable[[list[Item]], Outcomes | Awaitable[Outcomes]], /
    ) -> BatchTask[Item]: ...
    def __call__(self, fn: Any, /) -> Any:
        """Make the function a batch task."""
        return self._add(fn)
