"""The roles of deploy/sql, for the schema of the run; and temporary roles."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
from psycopg.conninfo import make_conninfo

from graphile_worker import sync
from graphile_worker._sql.identifiers import derive_companion_schema, quote_identifier
from tests.conftest import TestDatabase
from tests.support.cluster import Cluster
from tests.support.sql import Sql

SCRIPTS = Path(__file__).parent.parent.parent / "deploy" / "sql"

# In an order in which they can be dropped.
ROLES = (
    "queue_api",
    "queue_enqueuer",
    "queue_cleaner",
    "queue_reader",
    "queue_worker",
    "queue_migrator",
    "queue_owner",
    "queue_former",
    "queue_dba",
)


def script(name: str, schema: str) -> bytes:
    """One of the files, for that schema."""
    names = {"graphile_worker": schema, "graphile_worker_ext": derive_companion_schema(schema)}
    text = (SCRIPTS / name).read_text(encoding="utf-8")

    def renamed(match: re.Match[str]) -> str:
        quoted = quote_identifier(names[match[2]])
        return match[1] + (quoted.replace("'", "''") if match[1] else quoted)

    return re.sub(r"('?)\b(graphile_worker(?:_ext)?)\b", renamed, text).encode()


def run_script(database: TestDatabase, name: str, user: str = "postgres") -> None:
    with psycopg.connect(as_role(database, user), autocommit=True) as connection:
        connection.execute(script(name, database.schema))


def as_role(database: TestDatabase, role: str) -> str:
    """How that role connects."""
    return make_conninfo(database.dsn, user=role)


def owners(sql: Sql) -> set[str]:
    """Whom anything in both schemas belongs to."""
    found = sql.run(
        """
        select distinct pg_get_userbyid(owner)
        from (
          select relowner, relnamespace from pg_class
          union all
          select proowner, pronamespace from pg_proc
          union all
          select typowner, typnamespace from pg_type
          union all
          select nspowner, oid from pg_namespace
        ) as objects (owner, schema)
        where schema in ($1::regnamespace, $2::regnamespace)
        """,
        sql.text(":schema").decode(),
        sql.text(":ext_schema").decode(),
    )
    return {owner for (owner,) in found}


@contextmanager
def open_secured_database(cluster: Cluster, schema: str, name: str) -> Iterator[TestDatabase]:
    """A database that was set up as on the security page; its roles are dropped with it."""
    with open_administered_database(cluster, schema, name) as database:
        run_script(database, "roles.sql", user="queue_dba")
        grant_permissions(database)
        yield database


def grant_permissions(database: TestDatabase) -> None:
    """Migrate as the one who may, and let the roles do what they are for."""
    with sync.Client(as_role(database, "queue_migrator"), schema=database.schema) as migrator:
        migrator.migrate()
    run_script(database, "rights.sql", user="queue_migrator")
    run_script(database, "enqueue.sql", user="queue_dba")


@contextmanager
def open_administered_database(
    cluster: Cluster, schema: str, name: str, template: str = "template0"
) -> Iterator[TestDatabase]:
    """An empty database of `queue_dba`; all roles are dropped with it.

    That role may create roles and owns the database, but is not a superuser, as on a managed
    server.
    """
    drop_roles(cluster)
    cluster.create_database(name, template)
    database = TestDatabase(name, cluster, schema)
    with psycopg.connect(database.dsn, autocommit=True) as connection:
        connection.execute("create role queue_dba login createrole")
        connection.execute(f"alter database {name} owner to queue_dba".encode())
        # Its owner by default, from PostgreSQL 15 on.
        connection.execute("alter schema public owner to queue_dba")
    yield database
    cluster.drop_database(name)
    drop_roles(cluster)


def drop_roles(cluster: Cluster) -> None:
    """They belong to the cluster, not to a database."""
    with psycopg.connect(cluster.dsn(), autocommit=True) as connection:
        for role in ROLES:
            connection.execute(f"drop role if exists {role}".encode())


@contextmanager
def temporary_role(sql: Sql, name: str) -> Iterator[str]:
    """Create a role that owns nothing and may log in; drop it at the end.

    Roles belong to the cluster, so they stay when a database is dropped.
    """
    quoted = quote_identifier(name)
    sql.run(f"create role {quoted} login")
    yield name
    sql.run(f"drop owned by {quoted} cascade")
    sql.run(f"drop role {quoted}")
