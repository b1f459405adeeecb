"""The background tasks of the shop. The web server enqueues jobs, the worker runs them."""

from graphile_worker import App, JobContext

app = App()  # connects to DATABASE_URL on first use


@app.task(max_attempts=5)
async def send_receipt(ctx: JobContext, order_id: int) -> None:
    found = await ctx.query(
        "select email, product, receipt_sent_at from orders where id = %s", [order_id]
    )
    if not found or found[0]["receipt_sent_at"]:
        return  # the order was deleted, or a worker died after it sent the receipt
    await send_email(ctx, found[0]["email"], f"Thank you for buying {found[0]['product']}.")
    await ctx.query("update orders set receipt_sent_at = now() where id = %s", [order_id])


async def send_email(ctx: JobContext, to: str, text: str) -> None:
    """A stand-in for your mail provider."""
    ctx.logger.info("email to %s: %s", to, text)
