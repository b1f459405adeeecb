from datetime import timedelta

from django.db import connection, transaction

from graphile_worker import App, JobContext
from shop.models import Order

app = App()


@app.task
def charge(order_id: int) -> None:
    with transaction.atomic():
        order = Order.objects.select_for_update().get(id=order_id)
        order.paid = True
        order.save()


@app.task
async def remind(ctx: JobContext, order_id: int) -> None:
    order = await Order.objects.aget(id=order_id)
    if not order.paid:
        await ctx.add_job("charge", {"order_id": order.id})


@app.task
def double(order_id: int) -> None:
    """Fails in the database."""
    Order.objects.create(id=order_id)


def place_order() -> int:
    with transaction.atomic():
        order = Order.objects.create()
        charge.using(conn=connection).enqueue(order.id)
        remind.using(run_at=timedelta(days=1)).enqueue(order.id)
    return order.id
