from typing import Any

import psycopg
from flask.testing import FlaskClient
from graphile_worker.testing import Harness

from shop.tasks import delete_old_orders, send_receipt

TEA = {"email": "ada@example.com", "product": "tea"}


def test_an_order_is_answered_with_its_job(shop: FlaskClient, gw: Harness) -> None:
    answer = shop.post("/orders", json=TEA)

    assert answer.status_code == 202
    job = gw.assert_enqueued(send_receipt, order_id=answer.json["order_id"])
    assert answer.json["job_id"] == job.id


def test_the_receipt_is_sent_once(shop: FlaskClient, gw: Harness) -> None:
    order_id = shop.post("/orders", json=TEA).json["order_id"]

    gw.drain()

    order = shop.get(f"/orders/{order_id}").json
    assert order["receipt_sent_at"] is not None
    send_receipt.enqueue(order_id)
    gw.drain()
    assert shop.get(f"/orders/{order_id}").json == order


def test_an_order_that_cannot_be_served_leaves_no_job(shop: FlaskClient, gw: Harness) -> None:
    for product in ("coffee", "tea", "tea", "tea"):
        answer = shop.post("/orders", json=TEA | {"product": product})

    assert answer.status_code == 409
    assert len(gw.enqueued()) == 2


def test_old_orders_are_deleted(
    shop: FlaskClient, gw: Harness, conn: psycopg.Connection[Any]
) -> None:
    old, new = (shop.post("/orders", json=TEA).json["order_id"] for _ in range(2))
    conn.execute("update orders set ordered_at = now() - interval '2 years' where id = %s", [old])
    delete_old_orders.enqueue()

    gw.drain()

    assert shop.get(f"/orders/{old}").status_code == 404
    assert shop.get(f"/orders/{new}").status_code == 200
