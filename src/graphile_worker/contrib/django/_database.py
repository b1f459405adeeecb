"""Django's connections as a database of this package, and their connection string."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, TypeVar

from django.db import connections, transaction
from psycopg.conninfo import make_conninfo
from psycopg.pq import Conninfo

from graphile_worker._db.external_connections import DjangoConnection, OpenTransaction
from graphile_worker._db.external_pools import SyncExternalPoolDatabase
from graphile_worker._db.retry import is_outage
from graphile_worker._sql.identifiers import Schemas
from graphile_worker._sql.query import Query

T = TypeVar("T")


class DjangoDatabase(SyncExternalPoolDatabase):
    """The connection of the current thread to the database of an alias.

    Errors are raised as they are, without a retry. After a lost connection, the next query connects
    again, unless a transaction was open.
    """

    def __init__(self, alias: str, schemas: Schemas) -> None:
        super().__init__(lambda: nullcontext(connections[alias]), self._begin, schemas)
        self.alias = alias

    def run(self, query: Query[T]) -> T:
        connection = connections[self.alias]
        try:
            return DjangoConnection(connection, self.schemas).run(query)
        except Exception as error:
            if is_outage(error):
                _close_if_lost(connection)
            raise

    @contextmanager
    def _begin(self) -> Iterator[Any]:
        with transaction.atomic(using=self.alias):
            yield connections[self.alias]


def _close_if_lost(connection: Any) -> None:
    """Close a lost connection, so that Django connects again before the end of the request.

    In a transaction, it stays: the statements that follow must not run without the earlier ones.
    """
    if connection.connection is None or OpenTransaction.find(connection) is not None:
        return
    if not connection.is_usable():
        connection.close()


def dsn_of(alias: str) -> str:
    """Build the connection string of a database of Django, for a worker.

    It contains the password. During tests it names the test database.

    Args:
        alias: Key of `DATABASES`.

    Returns:
        The connection string, with the parameters that libpq knows.

    Raises:
        ConnectionDoesNotExist: No database has this alias.
    """
    connection: Any = connections[alias]
    # Only libpq's: Django and its backends add parameters of psycopg, with every release others.
    known = {each.keyword.decode() for each in Conninfo.get_defaults()}
    parameters = {
        name: value
        for name, value in connection.get_connection_params().items()
        if name in known and value is not None
    }
    role = connection.settings_dict["OPTIONS"].get("assume_role")
    if role:
        # Django sends SET ROLE after it connects. Without the role, row level security would show
        # an empty queue.
        escaped = str(role).replace("\\", "\\\\").replace(" ", "\\ ")
        parameters["options"] = f"{parameters.get('options', '')} -c role={escaped}".strip()
    return make_conninfo("", **parameters)
