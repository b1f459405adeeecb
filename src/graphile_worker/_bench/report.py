"""Results of a benchmark as JSON, with the versions that they depend on."""

import json
import platform
from dataclasses import asdict
from importlib.metadata import version
from typing import Any

from graphile_worker._bench.schema import BenchTarget
from graphile_worker._db.psycopg import get_psycopg_implementation


def format_json(benchmark: str, result: Any, target: BenchTarget) -> str:
    versions = {
        "benchmark": benchmark,
        "graphile_worker": version("graphile-worker"),
        "python": platform.python_version(),
        "psycopg": f"{version('psycopg')} ({get_psycopg_implementation()})",
        "postgresql": target.server_version,
    }
    return json.dumps({**versions, **asdict(result)}, indent=2)
