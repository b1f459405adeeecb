"""Tasks whose jobs the triggers of schema.sql add."""

from typing import Literal

from graphile_worker import App, JobContext

Operation = Literal["INSERT", "UPDATE", "DELETE"]

app = App()


@app.task
async def send_welcome(ctx: JobContext, email: str) -> None:
    ctx.logger.info("welcome, %s", email)


# The payload also has schema and table; a task names the keys that it needs.
@app.task
async def sync_to_crm(ctx: JobContext, op: Operation, id: int) -> None:
    ctx.logger.info("%s user %s", op, id)


@app.task
async def draw_cover(ctx: JobContext, id: int) -> None:
    # Read the row now: it may have changed since the trigger ran, or be deleted.
    for row in await ctx.query("select title from documents where id = %s", [id]):
        ctx.logger.info("a cover for %s", row["title"])


@app.task
async def index_document(ctx: JobContext, id: int) -> None:
    for row in await ctx.query("select title, body from documents where id = %s", [id]):
        ctx.logger.info("indexed %s: %d words", row["title"], len(row["body"].split()))


@app.task
async def drop_from_index(ctx: JobContext, id: int) -> None:
    ctx.logger.info("document %s was deleted", id)
