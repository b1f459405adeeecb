"""ExternalTask: a task that another program runs, whose jobs are typed and checked."""

from collections.abc import Callable, Mapping
from functools import wraps
from pathlib import Path
from typing import Any, NoReturn

from graphile_worker.errors import ConfigurationError
from graphile_worker.tasks.context import Enqueuer
from graphile_worker.tasks.signatures import Signature, get_function_name
from graphile_worker.tasks.task import P, R_co, Task, TaskOptions

# A JSON Schema, or the path of a file that contains one.
SchemaSource = Mapping[str, Any] | Path | str


class ExternalTask(Task[P, R_co]):
    """A task that another program runs, for example a Node worker. No worker of the app runs it."""

    def __init__(
        self,
        identifier: str,
        fn: Callable[..., R_co],
        options: TaskOptions,
        find_enqueuer: Callable[[], Enqueuer],
        schema: SchemaSource | None = None,
    ) -> None:
        signature = ExternalSignature(fn, identifier, schema)

        @wraps(fn)
        def reject(*args: object, **kwargs: object) -> NoReturn:
            raise build_external_error(identifier, "Add a job with enqueue().")

        super().__init__(identifier, reject, options, find_enqueuer, signature)


class ExternalSignature(Signature):
    """The signature of a function without a body, and a JSON Schema that payloads must fit, too."""

    def __init__(self, fn: Callable[..., Any], task: str, schema: SchemaSource | None) -> None:
        super().__init__(fn, task)
        if self.takes_context:
            raise ConfigurationError(
                f"{get_function_name(fn)}: remove the context. Another program runs task {task!r}."
            )
        self._check_schema: Callable[[Any], None] | None = None
        if schema is not None:
            # Imported here, so that other programs start without it.
            from graphile_worker._payloads.schema_check import build_schema_check

            self._check_schema = build_schema_check(schema, f"external task {task!r}")

    def check_payload(self, payload: Any) -> None:
        super().check_payload(payload)
        if self._check_schema is not None:
            self._check_schema(payload)


def build_external_error(identifier: str, hint: str) -> ConfigurationError:
    """Build the error for a program that wants to run an external task."""
    return ConfigurationError(
        f"task {identifier!r} is external, so another program runs it. {hint}"
    )
