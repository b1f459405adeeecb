"""The web server. An order and the job that sends its receipt are committed together."""

from typing import Any

from flask import Flask, abort, request
from psycopg import Connection
from psycopg.errors import CheckViolation, ForeignKeyViolation

from shop.database import transaction
from shop.tasks import send_receipt

web = Flask(__name__)


@web.post("/orders")
def place_order() -> tuple[dict[str, int], int]:
    order = request.get_json()
    try:
        with transaction() as conn:
            order_id = insert_order(conn, order["email"], order["product"])
            job = send_receipt.enqueue(order_id)
            take_from_stock(conn, order["product"])
    except (CheckViolation, ForeignKeyViolation):
        # The exception left the block, which rolled back the order and its job.
        abort(409, f"we have no {order['product']} left")
    return {"order_id": order_id, "job_id": job.id}, 202


@web.get("/orders/<int:order_id>")
def show_order(order_id: int) -> dict[str, object]:
    with transaction() as conn:
        row = conn.execute(
            "select product, receipt_sent_at from orders where id = %s", [order_id]
        ).fetchone()
    if row is None:
        abort(404, "no such order")
    return {"product": row[0], "receipt_sent_at": row[1]}


def insert_order(conn: Connection[Any], email: str, product: str) -> int:
    row = conn.execute(
        "insert into orders (email, product) values (%s, %s) returning id", [email, product]
    ).fetchone()
    assert row is not None
    return int(row[0])


def take_from_stock(conn: Connection[Any], product: str) -> None:
    conn.execute("update products set stock = stock - 1 where name = %s", [product])
