"""structlog: the ids of a job in each line that its task logs.

from graphile_worker.contrib.structlog import instrument

instrument(app)
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

try:
    from structlog.contextvars import bound_contextvars
except ImportError as error:
    raise ImportError('this needs structlog: pip install "graphile-worker[structlog]"') from error

from graphile_worker.app import App
from graphile_worker.errors import ConfigurationError
from graphile_worker.events import RunningJob
from graphile_worker.hooks import Hooks


def instrument(hooks: Hooks | App[Any]) -> None:
    """Bind `job_id`, `task`, `attempt`, `pool_id` and `worker_id` while a task runs.

    Args:
        hooks: App or hooks to instrument.

    Raises:
        ConfigurationError: The argument is not valid.
    """
    target = hooks.hooks if isinstance(hooks, App) else hooks
    if not isinstance(target, Hooks):
        raise ConfigurationError(f"expected an App or Hooks, got {type(hooks).__name__}")
    target.around(RunningJob)(_bind_job)


@contextmanager
def _bind_job(operation: RunningJob) -> Iterator[None]:
    job = operation.job
    with bound_contextvars(
        job_id=job.id,
        task=job.task_identifier,
        attempt=job.attempts,
        pool_id=operation.pool_id,
        worker_id=operation.worker_id,
    ):
        yield
