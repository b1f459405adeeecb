"""What figures depend on and a reader must know."""

import os
import platform
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

from benchmarks.server import Server
from graphile_worker._db.psycopg import get_psycopg_implementation


def surroundings(server: Server) -> dict[str, Any]:
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "psycopg": f"{version('psycopg')} ({get_psycopg_implementation()})",
        "postgresql": server.version,
        "server_settings": server.settings,
    }
