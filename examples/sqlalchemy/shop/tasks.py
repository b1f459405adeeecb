"""The background tasks of the shop. Programs enqueue jobs, the worker runs them."""

from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal

from graphile_worker import App, SyncJobContext

from shop import database
from shop.models import Order

app = App()  # connects to DATABASE_URL on first use


@dataclass
class Item:
    product: str
    price: Decimal


@dataclass
class Receipt:
    """The payload, checked when the job is enqueued and when it runs."""

    order_id: int
    email: str
    items: list[Item]


@app.task(max_attempts=5)
def send_receipt(ctx: SyncJobContext, receipt: Receipt, /) -> None:
    """Send a receipt. A plain function runs in a thread, so it can use a blocking Session."""
    with database.new_session.begin() as session:
        order = session.get(Order, receipt.order_id)
        if order is None or order.receipt_sent_at:
            return  # the order was deleted, or a worker died after it sent the receipt
        total = sum(item.price for item in receipt.items)
        send_email(ctx, receipt.email, f"{len(receipt.items)} items, {total} euros. Thank you.")
        order.receipt_sent_at = datetime.now(UTC)


def send_email(ctx: SyncJobContext, to: str, text: str) -> None:
    """A stand-in for your mail provider."""
    ctx.logger.info("email to %s: %s", to, text)
