"""examples/django: the commands of its README."""

import sys

import pytest

from graphile_worker import sync
from tests.site.examples.conftest import Example, Site
from tests.support.processes import eventually
from tests.support.sql import Sql

TEA = {"email": "ada@example.com", "product": "tea"}

# What a thread of the worker keeps after its job.
CUT_KEPT_CONNECTIONS = """
select pg_terminate_backend(pid)
from pg_stat_activity
where state = 'idle' and query like 'UPDATE "shop_order"%'
"""

FORTH_AND_BACK = """
import os

import django
from django.core.management import call_command

os.environ["DJANGO_SETTINGS_MODULE"] = "config.settings"
django.setup()
call_command("migrate")
call_command("makemigrations", check_changes=True)
call_command("migrate", "shop", "zero")
"""


@pytest.fixture
def site(example: Example) -> Site:
    example.type("python manage.py migrate")
    return example.serve("python manage.py runserver", PORT="0")


def order(site: Site) -> int:
    answer = site.post("/orders", TEA)
    assert answer.status_code == 202
    found: int = answer.json()["order_id"]
    return found


def wait_for_receipt(site: Site, order_id: int) -> None:
    path = f"/orders/{order_id}"
    eventually(lambda: site.get(path).json()["receipt_sent_at"], "the receipt is sent")


@pytest.mark.single_version
@pytest.mark.feature("F1", "F39")
@pytest.mark.timeout(240)
def test_orders_get_receipts_and_what_is_rolled_back_gets_none(
    example: Example, site: Site, example_sql: Sql
):
    orders = [order(site), order(site)]
    assert site.post("/orders", TEA).status_code == 409
    assert example_sql.value("select count(*) from :schema.jobs") == 2

    worker = example.work("python manage.py graphile_worker")
    for order_id in orders:
        wait_for_receipt(site, order_id)

    # The threads of those jobs stay, and get new connections.
    eventually(lambda: example_sql.run(CUT_KEPT_CONNECTIONS), "connections are kept")
    example_sql.run("update shop_product set stock = 1")
    wait_for_receipt(site, order(site))

    assert worker.stop() == 0
    assert "OperationalError" not in worker.err
    assert worker.out.count("To: ada@example.com") == 3
    assert example_sql.value("select count(*) from :schema.jobs") == 0
    assert example_sql.value("select count(*) from shop_order") == 3

    example.passes_its_own_tests()


@pytest.mark.single_version
def test_the_migration_keeps_an_existing_queue(example: Example, example_sql: Sql):
    with sync.Client(example_sql.dsn) as client:
        client.migrate()
        client.add_job("of_another_program")

    example.run(sys.executable, "-c", FORTH_AND_BACK)

    assert example_sql.value("select count(*) from :schema.jobs") == 1
