"""A worker in Python: it runs price_order, and leaves send_invoice to Node."""

from datetime import UTC, datetime, timedelta
from decimal import Decimal

from graphile_worker import App, Discard, JobContext

from payloads import Invoice, Order

PRICES = {"tea": Decimal("4.20"), "cup": Decimal("7.50")}

app = App()


@app.external_task("send_invoice")
def send_invoice(invoice: Invoice, /) -> None:
    """Send an invoice. Node runs this task."""


@app.task
async def price_order(ctx: JobContext, order: Order, /) -> None:
    """Price an order and enqueue its invoice."""
    total = sum((price(line.product) * line.amount for line in order.lines), Decimal(0))
    due = datetime.now(UTC).date() + timedelta(days=14)
    ctx.logger.info("order %s costs %s", order.order, total)
    await send_invoice.aenqueue(Invoice(order.order, total, due))


def price(product: str) -> Decimal:
    if product not in PRICES:
        raise Discard(f"unknown product {product}")
    return PRICES[product]
