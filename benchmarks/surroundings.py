"""What figures depend on and a reader must know."""

import os
import platform
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

from benchmarks.server import Server
from graphile_worker.db.psycopg import implementation


def surroundings(server: Server) -> dict[str, Any]:
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "psycopg": f"{version('psycopg')} ({implementation()})",
        "postgresql": server.version,
        "server_settings": server.settings,
    }
