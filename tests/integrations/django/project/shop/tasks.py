from graphile_worker.contrib.django import app
from shop.models import Order


@app.task
def pay(order_id: int) -> None:
    Order.objects.filter(id=order_id).update(is_paid=True)


@app.task
async def apay(order_id: int) -> None:
    await Order.objects.filter(id=order_id).aupdate(is_paid=True)


@app.task(run_in="process")
def pay_in_process(order_id: int) -> None:
    Order.objects.filter(id=order_id).update(is_paid=True)
