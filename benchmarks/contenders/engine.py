"""The engine bare: our own statements in a loop inside the server, with nobody to run the jobs."""

import re
import threading
import time
from typing import Any

import psycopg
from psycopg import sql

from benchmarks.contenders.contender import Contender, Drained
from benchmarks.contenders.ours import SCHEMA, Ours
from benchmarks.server import Database
from graphile_worker._sql.identifiers import Schemas
from graphile_worker._sql.queries.claim import (
    claim_jobs,
    claim_plain_jobs,
    complete_claimed_jobs,
    format_ids,
    get_task_ids,
)
from graphile_worker._sql.query import Query
from graphile_worker._sql.render import ParameterStyle, render
from graphile_worker._worker.sources.prefetch import MAX_FETCH

# Stands for the ids that the fetch before has taken, also as text.
TAKEN = [0]
TAKEN_TEXT = format_ids(TAKEN)

PROCEDURE = """
create procedure drain() language plpgsql as $drain$
#variable_conflict use_column
declare
  each_row record;
  taken_ids bigint[];
  {declarations}
begin
  loop
    taken_ids := '{{}}';
    for each_row in {fetch} loop
      taken_ids := taken_ids || each_row.id;
    end loop;
    if cardinality(taken_ids) = 0 then
      for each_row in {fetch_others} loop
        taken_ids := taken_ids || each_row.id;
      end loop;
    end if;
    commit;
    exit when cardinality(taken_ids) = 0;
    for each_row in {finish} loop
      null;
    end loop;
    commit;
  end loop;
end
$drain$
"""


class Engine(Contender):
    """How fast the database could be if Python took no time at all."""

    kind = "ours"

    def __init__(self, sessions: int) -> None:
        self._sessions = sessions
        self.name = f"engine_{sessions}"
        self.label = f"Bare engine, {['one session', 'two sessions'][sessions - 1]}"
        self.settings = f"the same statements in server-side loops, {MAX_FETCH:,} jobs at a time"

    def install(self, database: Database) -> None:
        Ours().install(database)

    def drain(self, database: Database, jobs: int) -> Drained:
        Ours().fill(database, jobs)
        _create_procedure(database)
        sessions = [threading.Thread(target=_call, args=(database,)) for _ in range(self._sessions)]
        began = time.monotonic()
        for session in sessions:
            session.start()
        for session in sessions:
            session.join()
        taken = time.monotonic() - began
        with database.connected() as connection:
            assert connection.execute(Ours.left.encode()).fetchone() == (False,)
        return Drained(jobs, taken)


def _call(database: Database) -> None:
    with database.connected() as connection:
        connection.execute("call drain()")


def _create_procedure(database: Database) -> None:
    with database.connected() as connection:
        tasks = _task_ids(connection)
        fetch = claim_plain_jobs("engine", tasks, limit=MAX_FETCH)
        fetch_others = claim_jobs("engine", tasks, limit=MAX_FETCH)
        finish = complete_claimed_jobs("engine", TAKEN, [])
        text = PROCEDURE.format(
            declarations="\n  ".join(
                [
                    declared
                    for query in (fetch, fetch_others, finish)
                    for declared in _declared(query, connection)
                ]
            ),
            fetch=_embedded(fetch),
            fetch_others=_embedded(fetch_others),
            finish=_embedded(finish),
        )
        connection.execute(text.encode())


def _task_ids(connection: psycopg.Connection) -> dict[int, str]:
    query = get_task_ids(["noop"])
    text = render(query.statement, Schemas.from_names(SCHEMA), ParameterStyle.NATIVE)
    cursor = psycopg.RawCursor(connection)
    return query.read(cursor.execute(text.encode(), query.args).fetchall())


def _embedded(query: Query[Any]) -> str:
    """The statement with variables in place of its parameters, planned once as a worker's is."""
    text = render(query.statement, Schemas.from_names(SCHEMA), ParameterStyle.NATIVE)
    return re.sub(r"\$(\d+)", lambda match: _variable(query, int(match[1])), text)


def _variable(query: Query[Any], position: int) -> str:
    if query.args[position - 1] == TAKEN_TEXT:
        return "taken_ids"
    return f"{query.statement}_{position}"


def _declared(query: Query[Any], connection: psycopg.Connection) -> list[str]:
    def declared(position: int, value: object) -> str:
        literal = sql.Literal(value).as_string(connection)
        return f"{_variable(query, position)} {_type(value)} := {literal};"

    given = [each for each in enumerate(query.args, start=1) if each[1] != TAKEN_TEXT]
    return [declared(position, value) for position, value in given]


def _type(value: object) -> str:
    match value:
        case bool():
            return "boolean"
        case int():
            return "int"
        case list():
            return "int[]"
        case _:
            return "text"
