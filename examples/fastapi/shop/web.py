"""The web server. An order and the job that sends its receipt are committed together."""

import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Annotated, Any

from fastapi import Depends, FastAPI, HTTPException, Request, Response
from graphile_worker import Client, Job
from psycopg import AsyncConnection
from psycopg.errors import CheckViolation, ForeignKeyViolation
from psycopg_pool import AsyncConnectionPool
from pydantic import BaseModel

from shop.tasks import app, send_receipt


@asynccontextmanager
async def lifespan(web: FastAPI) -> AsyncIterator[None]:
    """Open the pool and the client, and close them in reverse order."""
    async with AsyncExitStack() as stack:
        pool = AsyncConnectionPool(os.environ["DATABASE_URL"], open=False)
        web.state.pool = await stack.enter_async_context(pool)
        web.state.queue = await stack.enter_async_context(Client(pool))
        if os.environ.get("EMBEDDED_WORKER"):
            await stack.enter_async_context(app.worker(concurrency=10))
        await web.state.queue.check_schema()  # fail at startup if the schema is missing
        yield


web = FastAPI(lifespan=lifespan)


async def in_transaction(request: Request) -> AsyncIterator[AsyncConnection[Any]]:
    """A connection that commits if the route returns, and rolls back if it raises."""
    async with request.app.state.pool.connection() as conn:
        yield conn


def queue_client(request: Request) -> Client:
    queue: Client = request.app.state.queue
    return queue


# "function" commits before the response is sent. By default, FastAPI commits afterwards: too late
# to answer 500, and a client that asks immediately may find nothing.
Connection = Annotated[AsyncConnection[Any], Depends(in_transaction, scope="function")]
Queue = Annotated[Client, Depends(queue_client)]


class NewOrder(BaseModel):
    email: str
    product: str


@web.post("/orders", status_code=202)
async def place_order(order: NewOrder, conn: Connection, response: Response) -> dict[str, int]:
    try:
        order_id = await insert_order(conn, order)
        job = await send_receipt.using(conn=conn).aenqueue(order_id)
        await take_from_stock(conn, order.product)
    except (CheckViolation, ForeignKeyViolation):
        # The exception rolls back the order and its job.
        raise HTTPException(409, f"we have no {order.product} left") from None
    response.headers["Location"] = f"/jobs/{job.id}"
    return {"order_id": order_id, "job_id": job.id}


@web.get("/orders/{order_id}")
async def show_order(order_id: int, conn: Connection) -> dict[str, object]:
    cursor = await conn.execute(
        "select product, receipt_sent_at from orders where id = %s", [order_id]
    )
    row = await cursor.fetchone()
    if row is None:
        raise HTTPException(404, "no such order")
    return {"product": row[0], "receipt_sent_at": row[1]}


@web.get("/jobs/{job_id}")
async def show_job(job_id: int, queue: Queue, conn: Connection) -> dict[str, object]:
    job = await queue.get_job(job_id, conn=conn)
    if job is None:
        # The row is deleted when the job succeeds. The shop's own tables have the outcome.
        raise HTTPException(404, "finished, or never existed")
    return {"job_id": job.id, "state": state_of(job), "attempts": job.attempts}


def state_of(job: Job) -> str:
    if job.locked_by:
        return "running"
    if job.attempts >= job.max_attempts:
        return "failed"
    return "retrying" if job.attempts else "waiting"


async def insert_order(conn: AsyncConnection[Any], order: NewOrder) -> int:
    cursor = await conn.execute(
        "insert into orders (email, product) values (%s, %s) returning id",
        [order.email, order.product],
    )
    (order_id,) = await cursor.fetchone() or (0,)
    return int(order_id)


async def take_from_stock(conn: AsyncConnection[Any], product: str) -> None:
    await conn.execute("update products set stock = stock - 1 where name = %s", [product])
