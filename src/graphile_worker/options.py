"""What can be set and could be written in a file; live things are arguments instead."""

import os
from dataclasses import dataclass, field

from graphile_worker.errors import ConfigurationError

DEFAULT_SCHEMA = "graphile_worker"


def default_schema() -> str:
    """The schema when none is given: `GRAPHILE_WORKER_SCHEMA`, else `graphile_worker`."""
    return os.environ.get("GRAPHILE_WORKER_SCHEMA") or DEFAULT_SCHEMA


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerOptions:
    """How a worker, and what migrates for it, is set up."""

    schema: str = field(default_factory=default_schema)
    ext_schema: str | None = None
    concurrency: int = 1

    def __post_init__(self) -> None:
        if not self.schema:
            raise ConfigurationError("schema must not be empty")
        if self.concurrency < 1:
            raise ConfigurationError(f"concurrency must be at least 1, got {self.concurrency}")
