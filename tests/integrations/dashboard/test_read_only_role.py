"""A dashboard that connects as a role that may only read."""

from collections.abc import Iterator

import psycopg
import pytest

from graphile_worker import sync
from graphile_worker._sql.identifiers import quote_identifier
from graphile_worker.contrib.dashboard._dashboard import ALL_ROUTES
from tests.conftest import TestDatabase
from tests.integrations.dashboard.test_security import PUBLIC_API, fill
from tests.support.cluster import Cluster
from tests.support.dashboard import Board, open_dashboard
from tests.support.roles import as_role, open_secured_database


@pytest.fixture(scope="module")
def secured(cluster: Cluster, schema: str) -> Iterator[TestDatabase]:
    with open_secured_database(cluster, schema, "dashboard_secured") as database:
        with sync.Client(as_role(database, "queue_migrator"), schema=schema) as client:
            client.add_job("send_email", {"to": "ann"})
        yield database


@pytest.fixture(scope="module")
def board(secured: TestDatabase) -> Iterator[Board]:
    with open_dashboard(secured, dsn=as_role(secured, "queue_reader")) as board:
        yield board


def test_a_role_that_may_only_read_sees_the_queue(board: Board) -> None:
    caller = board.sign_in()
    session = caller.get("session")
    assert session["read_only"]
    assert set(session["user"]["permissions"]) <= {"view", "view_payload"}
    assert caller.get("overview")["totals"]["ready"] == 1
    for route in ALL_ROUTES:
        if route.method == "GET" and "{" not in route.path and route.path != "/stream":
            answer = caller.request("GET", fill(route))
            assert answer.is_success, (route.path, answer.text)


def test_changes_are_rejected_here_and_by_the_database(board: Board, secured: TestDatabase) -> None:
    caller = board.sign_in()
    for route in ALL_ROUTES:
        if route.method != "GET" and (route.method, route.path) not in PUBLIC_API:
            answer = caller.request(route.method, fill(route))
            assert (answer.status_code, answer.json()["code"]) == (403, "forbidden"), route.path
    # Without the check of the dashboard, the database rejects them.
    schema = quote_identifier(secured.schema)
    with psycopg.connect(as_role(secured, "queue_reader"), autocommit=True) as connection:
        for statement in (
            f"update {schema}._private_jobs set priority = 1",
            f"delete from {schema}._private_jobs",
            f"update {schema}._private_job_queues set locked_at = null",
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(statement.encode())


def test_the_database_rejects_changes_that_pass_the_check(
    secured: TestDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_dashboard(secured, dsn=as_role(secured, "queue_reader")) as board:
        caller = board.sign_in()
        monkeypatch.setattr(type(board.service), "is_read_only", False)
        answer = caller.request("POST", "jobs", {"task": "send_email", "payload": "{}"})
        assert (answer.status_code, answer.json()["code"]) == (403, "permission_denied")
