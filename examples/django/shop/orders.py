"""How an order is placed: in one transaction with the job that sends its receipt."""

from django.db import transaction
from django.db.models import F
from graphile_worker import Job

from shop.models import Order, Product
from shop.tasks import send_receipt


class SoldOut(Exception): ...


@transaction.atomic
def place_order(email: str, product: Product) -> tuple[Order, Job]:
    """Add an order and its job. Both are committed, or neither if this raises."""
    order = Order.objects.create(email=email, product=product)
    job = send_receipt.enqueue(order.id)
    in_stock = Product.objects.filter(id=product.id, stock__gt=0)
    if not in_stock.update(stock=F("stock") - 1):
        raise SoldOut
    return order, job
