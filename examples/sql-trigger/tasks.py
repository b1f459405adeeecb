"""Tasks whose jobs are added by the triggers of schema.sql."""

from typing import Literal

from graphile_worker import App, JobContext

Operation = Literal["INSERT", "UPDATE", "DELETE"]

app = App()


@app.task
async def send_welcome(ctx: JobContext, email: str) -> None:
    ctx.logger.info("welcome, %s", email)


# The payload has schema and table too; a task names the keys that it wants.
@app.task
async def sync_to_crm(ctx: JobContext, op: Operation, id: int) -> None:
    ctx.logger.info("%s user %s", op, id)


@app.task
async def draw_cover(ctx: JobContext, id: int) -> None:
    # The row may have changed since, or be gone: what counts is how it is now.
    for row in await ctx.query("select title from documents where id = %s", [id]):
        ctx.logger.info("a cover for %s", row["title"])


@app.task
async def index_document(ctx: JobContext, id: int) -> None:
    for row in await ctx.query("select title, body from documents where id = %s", [id]):
        ctx.logger.info("indexed %s: %d words", row["title"], len(row["body"].split()))


@app.task
async def drop_from_index(ctx: JobContext, id: int) -> None:
    ctx.logger.info("document %s is no more", id)
