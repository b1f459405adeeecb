"""examples/fastapi: the commands of its README."""

import httpx
import pytest

from tests.site.examples.conftest import Example, Site
from tests.support.processes import eventually
from tests.support.sql import Sql

TEA = {"email": "ada@example.com", "product": "tea"}


@pytest.fixture
def site(example: Example) -> Site:
    example.type("graphile-worker migrate")
    example.type("psql")
    return example.serve("uvicorn", UVICORN_PORT="0")


def wait_for_receipt(site: Site, answer: httpx.Response) -> None:
    """Wait until the order is marked as sent, and its job is deleted."""
    order = f"/orders/{answer.json()['order_id']}"
    eventually(lambda: site.get(order).json()["receipt_sent_at"], "the receipt is sent")
    job = answer.headers["location"]
    eventually(lambda: site.get(job).status_code == 404, "the job is done")


@pytest.mark.single_version
@pytest.mark.feature("F1", "F39")
@pytest.mark.timeout(240)
def test_orders_get_receipts_and_what_is_rolled_back_gets_none(
    example: Example, site: Site, example_sql: Sql
):
    first, second, third = (site.post("/orders", TEA) for _ in range(3))

    assert [each.status_code for each in (first, second, third)] == [202, 202, 409]
    assert site.get(first.headers["location"]).json()["state"] == "waiting"
    assert example_sql.value("select count(*) from :schema.jobs") == 2

    worker = example.work()
    for answer in (first, second):
        wait_for_receipt(site, answer)
    assert example_sql.value("select count(*) from orders") == 2
    assert worker.stop() == 0
    site.program.stop()
    assert "Application shutdown complete" in site.program.err

    example.passes_its_own_tests()


@pytest.mark.single_version
@pytest.mark.feature("F4")
def test_the_web_server_can_run_the_jobs_itself(example: Example, example_sql: Sql):
    example_sql.run((example.folder / "schema.sql").read_text())
    site = example.serve("env EMBEDDED_WORKER=1", UVICORN_PORT="0")

    wait_for_receipt(site, site.post("/orders", TEA))

    site.program.stop()
    assert "Application shutdown complete" in site.program.err
    assert example_sql.value("select count(*) from :schema.jobs") == 0


@pytest.mark.single_version
def test_without_the_schema_the_server_prints_the_migrate_command(example: Example):
    server = example.start("uvicorn", UVICORN_PORT="0")

    assert server.end() != 0
    assert "graphile-worker migrate" in server.err
