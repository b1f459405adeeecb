"""The background tasks of the shop. Views enqueue jobs, the worker runs them."""

from django.core.mail import send_mail
from django.utils import timezone
from graphile_worker.contrib.django import app

from shop.models import Order


@app.task(max_attempts=5)
def send_receipt(order_id: int) -> None:
    """Send a receipt. A plain function runs in a thread, so it can use all of Django."""
    order = Order.objects.select_related("product").filter(id=order_id).first()
    if order is None or order.receipt_sent_at:
        return  # the order was deleted, or a worker died after it sent the receipt
    text = f"Thank you for buying {order.product.name}."
    send_mail("Your order", text, "shop@example.com", [order.email])
    order.receipt_sent_at = timezone.now()
    order.save(update_fields=["receipt_sent_at"])
