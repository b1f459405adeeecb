"""What the shop does in the background. Programs add jobs, the worker runs them."""

from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal

from graphile_worker import App, SyncJobContext

from shop import database
from shop.models import Order

app = App()  # DATABASE_URL says where; nothing is connected yet


@dataclass
class Item:
    product: str
    price: Decimal


@dataclass
class Receipt:
    """The payload: checked when a job is added, and again when it is read."""

    order_id: int
    email: str
    items: list[Item]


@app.task(max_attempts=5)
def send_receipt(ctx: SyncJobContext, receipt: Receipt, /) -> None:
    """A plain function: the worker runs it in a thread, where a blocking Session is at home."""
    with database.new_session.begin() as session:
        order = session.get(Order, receipt.order_id)
        if order is None or order.receipt_sent_at:
            return  # the order is gone, or a worker died just after it had sent this receipt
        total = sum(item.price for item in receipt.items)
        send_email(ctx, receipt.email, f"{len(receipt.items)} items, {total} euros. Thank you.")
        order.receipt_sent_at = datetime.now(UTC)


def send_email(ctx: SyncJobContext, to: str, text: str) -> None:
    """In place of your mail provider."""
    ctx.logger.info("email to %s: %s", to, text)
