"""Each statement runs on each version of PostgreSQL, in a schema with any name.

Tests of what a statement does run on one version.
"""

from contextlib import closing

from graphile_worker._sql.identifiers import Schemas
from graphile_worker.ops.states import JobState
from tests.support.rust import LEVEL_20
from tests.support.statements import run_all_statements


def test_each_statement_runs_on_this_version_and_in_this_schema(database, sql, table):
    for statement in LEVEL_20[1:]:
        sql.run(statement)
    for state in JobState:
        table.add_job_in_state(state)

    with closing(sql.another()) as session:
        run_all_statements(session.connection, Schemas.from_names(database.schema))
