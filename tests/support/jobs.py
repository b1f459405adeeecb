"""Jobs without a database: only what the test is about."""

from typing import Any

from graphile_worker import Job


def make_job(**given: Any) -> Job:
    """A waiting job, but for what is given."""
    row: dict[str, Any] = {
        "id": 7,
        "task_identifier": "resize",
        "queue_name": None,
        "payload_text": "{}",
        "priority": 0,
        "run_at": "0.000000",
        "attempts": 0,
        "max_attempts": 25,
        "last_error": None,
        "created_at": "0.000000",
        "updated_at": "0.000000",
        "key": None,
        "locked_at": None,
        "locked_by": None,
        "revision": 0,
        "flags": None,
    }
    return Job(**{**row, **given})
