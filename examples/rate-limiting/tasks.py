"""A task that calls a service with a limit, and one that does not."""

import asyncio

from graphile_worker import App, JobContext

from limits import take_token

STRIPE = "api:stripe"

app = App()


@app.task
async def charge(ctx: JobContext, order_id: int) -> None:
    taken_at = await take_token(ctx, STRIPE)  # before anything else
    await asyncio.sleep(0.1)  # here you would call the service
    await ctx.query("insert into calls values (%s, %s, %s)", [order_id, taken_at, ctx.pool_id])
    ctx.logger.info("charged order %s", order_id)


@app.task
async def send_receipt(ctx: JobContext, order_id: int) -> None:
    await ctx.query("insert into receipts values (%s)", [order_id])
