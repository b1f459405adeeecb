"""Test programs that add and run jobs. The pytest fixture `gw` is a `Harness`."""

from graphile_worker.testing.contexts import RecordedContext, SyncRecordedContext
from graphile_worker.testing.harness import Harness
from graphile_worker.testing.runner import DrainResult

__all__ = ["DrainResult", "Harness", "RecordedContext", "SyncRecordedContext"]
