"""A pool of test databases: emptied after each test, dropped after a test that alters them."""

import itertools
import time
from collections import defaultdict
from dataclasses import dataclass

import psycopg

from tests.support.cluster import Cluster

APPLICATION_NAME = "test database pool"

# A backend ends shortly after its client closes the connection.
SESSIONS_END_WITHIN_SECONDS = 0.25
SESSION_POLL_SECONDS = 0.001

# Each reset leaves dead rows in pg_class.
MAX_USES = 200

# Catalogues with many built-in rows, each with the indexed column that separates user objects.
LARGE_CATALOGUES = {
    "pg_attrdef": "adrelid",
    "pg_attribute": "attrelid",
    "pg_constraint": "oid",
    "pg_description": "objoid",
    "pg_enum": "oid",
    "pg_index": "indexrelid",
    "pg_operator": "oid",
    "pg_proc": "oid",
    "pg_rewrite": "oid",
    "pg_sequence": "seqrelid",
    "pg_statistic": "starelid",
    "pg_trigger": "oid",
    "pg_type": "oid",
}
SMALL_CATALOGUES = (
    "pg_default_acl",
    "pg_event_trigger",
    "pg_extension",
    "pg_foreign_data_wrapper",
    "pg_foreign_server",
    "pg_inherits",
    "pg_language",
    "pg_largeobject_metadata",
    "pg_partitioned_table",
    "pg_policy",
    "pg_publication",
    "pg_publication_rel",
    "pg_statistic_ext",
)
FIRST_USER_OID = 16384

# A changed row has a later transaction as its xmin, a removed one lowers the count.
VERSION = "select concat(count(*), ' ', max(xmin::text::bigint)) from "

# TRUNCATE writes rows of pg_class: compare their contents, without the place and size of the files.
# Temporary schemas stay when the session that made them ends.
PARTS = (
    *(
        f"{VERSION} {catalogue} where {column} >= {FIRST_USER_OID}"
        for catalogue, column in LARGE_CATALOGUES.items()
    ),
    *(f"{VERSION} {catalogue}" for catalogue in SMALL_CATALOGUES),
    f"{VERSION} pg_namespace where nspname !~ '^pg_(toast_)?temp_'",
    f"{VERSION} pg_database where datname = current_database()",
    f"{VERSION} pg_db_role_setting where setdatabase = "
    "(select oid from pg_database where datname = current_database())",
    f"""
    select concat(count(*), ' ', sum(hashtext(concat_ws(
      ' ', oid, relname, relnamespace, reltype, relowner, relam, reltablespace, relkind,
      relpersistence, relnatts, relchecks, relhasindex, relhasrules, relhastriggers,
      relhassubclass, relrowsecurity, relforcerowsecurity, relreplident, relispartition,
      relacl, reloptions
    ))))
    from pg_class where oid >= {FIRST_USER_OID}
    """,
)

USER_TABLES = f"""
from pg_class
join pg_namespace on pg_namespace.oid = relnamespace
where pg_class.oid >= {FIRST_USER_OID} and relkind = 'r' and relpersistence <> 't'
"""
FILLED_TABLES = f"""
select format('%I.%I', nspname, relname) {USER_TABLES} and pg_relation_size(pg_class.oid) > 0
"""

# VACUUM and ANALYZE write sizes for an empty table too, and the planner reads them.
USED_TABLES = f"""
select format('%I.%I', nspname, relname) {USER_TABLES}
  and (pg_relation_size(pg_class.oid) > 0 or reltuples >= 0)
"""

SESSIONS = """
select pg_stat_get_db_numbackends(oid) from pg_database where datname = current_database()
"""

RESET_COUNTERS = """
select setval(seqrelid::regclass, seqstart, false) from pg_sequence;
select pg_stat_reset();
"""


_numbers = itertools.count(1)


@dataclass
class _Database:
    name: str
    template: str
    connection: psycopg.Connection
    state: bytes
    filled: frozenset[str]
    original: str
    uses: int = 1


class DatabasePool:
    """Clones of templates, kept for the next test unless a test alters more than rows.

    The pool keeps a database only if its catalogue and the rows of the install (the ledgers of
    migrations) equal those of a fresh clone, and if no session is left. It drops all other
    databases, so a test may alter its database in any way.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._free: dict[str, list[_Database]] = defaultdict(list)
        self._taken: dict[str, _Database] = {}
        self.cloned = 0
        self.reused = 0

    def acquire(self, template: str) -> str:
        """Return the name of a database like the template; give it back after the test."""
        if self._free[template]:
            database = self._free[template].pop()
            database.uses += 1
            self.reused += 1
        else:
            database = self._opened(self.clone(template), template)
        self._taken[database.name] = database
        return database.name

    def clone(self, template: str) -> str:
        """Return the name of a new database, which the caller drops."""
        self.cloned += 1
        name = f"test_{next(_numbers)}"
        self._cluster.create_database(name, template)
        return name

    def release(self, name: str) -> str | None:
        """Keep the database for the next test, or drop it and return the reason."""
        database = self._taken.pop(name)
        reason = _reset(database)
        if reason is None:
            self._free[database.template].append(database)
        else:
            database.connection.close()
            self._cluster.drop_database(name)
        return reason

    def close(self) -> None:
        """End the sessions of the pool; the databases go with the cluster."""
        for database in itertools.chain(self._taken.values(), *self._free.values()):
            database.connection.close()

    def _opened(self, name: str, template: str) -> _Database:
        dsn = self._cluster.dsn(name, application_name=APPLICATION_NAME)
        connection = psycopg.connect(dsn, autocommit=True)
        # A lock that outlasts its session makes the reset fail, and the database is dropped.
        connection.execute("set lock_timeout = '1s'")
        filled = frozenset(table for (table,) in connection.execute(FILLED_TABLES.encode()))
        parts = [*PARTS, *(f"{VERSION} {table}" for table in sorted(filled))]
        state = f"""
        select concat_ws(', ', {", ".join(f"({part})" for part in parts)}), array({USED_TABLES})
        """.encode()
        original, _ = _state(connection, state)
        return _Database(name, template, connection, state, filled, original)


def _reset(database: _Database) -> str | None:
    """Empty the tables, or return the reason to drop the database."""
    connection = database.connection
    if database.uses == MAX_USES:
        return "used often enough"
    try:
        if not _sessions_end(connection):
            return "a session is left"
        current, used = _state(connection, database.state)
        if current != database.original:
            return "altered"
        tables = ", ".join(sorted(used - database.filled))
        truncate = f"truncate {tables};" if tables else ""
        connection.execute((truncate + RESET_COUNTERS).encode())
    except psycopg.Error as error:
        return f"{type(error).__name__}: {error}"
    return None


def _sessions_end(connection: psycopg.Connection) -> bool:
    """Wait for other sessions to end; return False if one is left."""
    deadline = time.monotonic() + SESSIONS_END_WITHIN_SECONDS
    while connection.execute(SESSIONS, prepare=True).fetchone() != (1,):
        if time.monotonic() > deadline:
            return False
        time.sleep(SESSION_POLL_SECONDS)
    return True


def _state(connection: psycopg.Connection, question: bytes) -> tuple[str, set[str]]:
    """Return a fingerprint of the catalogue, and the tables that are not as created."""
    row = connection.execute(question, prepare=True).fetchone()
    assert row is not None
    return row[0], set(row[1])
