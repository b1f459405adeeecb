"""What was measured as JSON, with all that the figures depend on."""

import json
import platform
from dataclasses import asdict
from importlib.metadata import version
from typing import Any

from graphile_worker.bench.place import Place
from graphile_worker.db.psycopg import implementation


def as_json(benchmark: str, found: Any, place: Place) -> str:
    surroundings = {
        "benchmark": benchmark,
        "graphile_worker": version("graphile-worker"),
        "python": platform.python_version(),
        "psycopg": f"{version('psycopg')} ({implementation()})",
        "postgresql": place.server_version,
    }
    return json.dumps({**surroundings, **asdict(found)}, indent=2)
