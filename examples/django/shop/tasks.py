"""What the shop does in the background. Views add jobs, the worker runs them."""

from django.core.mail import send_mail
from django.utils import timezone
from graphile_worker import App

from shop.models import Order

app = App()  # the worker's own connections: DATABASE_URL says where, nothing is connected yet


@app.task(max_attempts=5)
def send_receipt(order_id: int) -> None:
    """A plain function: the worker runs it in a thread, so all of Django can be used."""
    order = Order.objects.select_related("product").filter(id=order_id).first()
    if order is None or order.receipt_sent_at:
        return  # the order is gone, or a worker died just after it had sent this receipt
    text = f"Thank you for buying {order.product.name}."
    send_mail("Your order", text, "shop@example.com", [order.email])
    order.receipt_sent_at = timezone.now()
    order.save(update_fields=["receipt_sent_at"])
