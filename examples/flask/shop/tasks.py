"""The background tasks of the shop. The web server enqueues jobs, the worker runs them."""

from graphile_worker import App, Cron, SyncJobContext

app = App()  # connects to DATABASE_URL on first use


@app.task(max_attempts=5)
def send_receipt(ctx: SyncJobContext, order_id: int) -> None:
    """Send a receipt. A plain function runs in a thread of the worker and may block."""
    found = ctx.query(
        "select email, product, receipt_sent_at from orders where id = %s", [order_id]
    )
    if not found or found[0]["receipt_sent_at"]:
        return  # the order was deleted, or a worker died after it sent the receipt
    send_email(ctx, found[0]["email"], f"Thank you for buying {found[0]['product']}.")
    ctx.query("update orders set receipt_sent_at = now() where id = %s", [order_id])


@app.cron(Cron.daily_at(3, 0), id="nightly")
@app.task
def delete_old_orders(ctx: SyncJobContext, days: int = 365) -> None:
    """Delete old orders at 03:00 UTC. The deletion commits together with the job."""
    with ctx.transaction() as conn:
        deleted = conn.execute(
            "delete from orders where ordered_at < now() - make_interval(days => %s)", [days]
        )
        ctx.logger.info("deleted %s old orders", deleted.rowcount)


def send_email(ctx: SyncJobContext, to: str, text: str) -> None:
    """A stand-in for your mail provider."""
    ctx.logger.info("email to %s: %s", to, text)
