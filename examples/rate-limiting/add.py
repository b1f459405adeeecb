"""Add ten charges with the flag of the service, and twenty receipts without it."""

from tasks import STRIPE, app, charge, send_receipt

limited = charge.using(flags=[STRIPE])
app.add_jobs([limited.spec(order_id) for order_id in range(10)])
app.add_jobs([send_receipt.spec(order_id) for order_id in range(20)])
