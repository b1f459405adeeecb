"""Write docs/reference/schema.sql: both schemas of a new installation, as pg_dump prints them.

Run `python -m tools.dump_schema` after every change of a migration.
"""

import re
import subprocess
from pathlib import Path

from graphile_worker import sync
from graphile_worker._sql.identifiers import derive_companion_schema
from graphile_worker.options import DEFAULT_SCHEMA
from tests.support.cluster import Cluster
from tests.support.tools import client_program

MAJOR = 18
TARGET = Path(__file__).resolve().parents[1] / "docs" / "reference" / "schema.sql"
HEADING = (
    "-- Both schemas of a new installation, for reading. `python -m tools.dump_schema` writes\n"
    "-- this file. `graphile-worker migrate --sql` prints the statements that install them.\n\n"
)


def main() -> None:
    TARGET.write_text(fresh_dump(), encoding="utf-8")
    print(f"wrote {TARGET.name}")


def fresh_dump() -> str:
    """Return the current text of the file, from a temporary server."""
    cluster = Cluster(MAJOR).start()
    try:
        with sync.Client(cluster.dsn(), schema=DEFAULT_SCHEMA) as client:
            client.migrate()
        return HEADING + _remove_noise(_pg_dump(cluster.dsn()))
    finally:
        cluster.stop()


def _pg_dump(dsn: str) -> str:
    schemas = [
        f"--schema={name}" for name in (DEFAULT_SCHEMA, derive_companion_schema(DEFAULT_SCHEMA))
    ]
    command = [str(client_program("pg_dump")), "--schema-only", "--no-owner", "--no-privileges"]
    command += ["--restrict-key=x", *schemas, dsn]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def _remove_noise(dump: str) -> str:
    """Return only the objects, without versions, session settings and comments."""
    noise = ("--", "SET ", "SELECT pg_catalog.set_config", "\\restrict", "\\unrestrict")
    lines = [line for line in dump.splitlines() if not line.startswith(noise)]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip() + "\n"


if __name__ == "__main__":
    main()
