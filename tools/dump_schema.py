"""Rewrite docs/reference/schema.sql: both schemas of a fresh install, as pg_dump prints them.

Run `python -m tools.dump_schema` after every change of a migration.
"""

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
    "-- Both schemas of a fresh install, for reading. Made by `python -m tools.dump_schema`,\n"
    "-- never edited by hand; `graphile-worker migrate --sql` prints what installs them.\n\n"
)


def main() -> None:
    TARGET.write_text(fresh_dump(), encoding="utf-8")
    print(f"wrote {TARGET.name}")


def fresh_dump() -> str:
    """What the file should hold now, from a server that lives only for this."""
    cluster = Cluster(MAJOR).start()
    try:
        with sync.Client(cluster.dsn(), schema=DEFAULT_SCHEMA) as client:
            client.migrate()
        return HEADING + _without_noise(_pg_dump(cluster.dsn()))
    finally:
        cluster.stop()


def _pg_dump(dsn: str) -> str:
    schemas = [
        f"--schema={name}" for name in (DEFAULT_SCHEMA, derive_companion_schema(DEFAULT_SCHEMA))
    ]
    command = [str(client_program("pg_dump")), "--schema-only", "--no-owner", "--no-privileges"]
    command += ["--restrict-key=x", *schemas, dsn]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def _without_noise(dump: str) -> str:
    """The objects alone: no versions, no settings of the session, no empty comment lines."""
    noise = ("--", "SET ", "SELECT pg_catalog.set_config", "\\restrict", "\\unrestrict")
    lines = [line for line in dump.splitlines() if not line.startswith(noise)]
    return _with_single_gaps("\n".join(lines))


def _with_single_gaps(text: str) -> str:
    while "\n\n\n" in text:
        text = text.replace("\n\n\n", "\n\n")
    return text.strip() + "\n"


if __name__ == "__main__":
    main()
