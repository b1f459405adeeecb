"""Tasks that record their connection and what they find of earlier jobs."""

import asyncio
import json

from asgiref.sync import sync_to_async
from django.db import connection, transaction
from django.utils import timezone, translation

from graphile_worker.contrib.django import app
from shop.models import Order


def look() -> str:
    """Return the traces of earlier jobs."""
    modes = [connection.get_autocommit(), connection.in_atomic_block]
    zone = str(timezone.get_current_timezone())
    return json.dumps([*modes, len(connection.queries), translation.get_language(), zone])


def run(tag: str, action: str) -> None:
    traces = look()
    with connection.cursor() as cursor:
        cursor.execute("select pg_backend_pid()")
        pid = cursor.fetchone()[0]
        if action == "terminate":
            cursor.execute("select pg_terminate_backend(pg_backend_pid())")
    Order.objects.create(email=f"{tag} {pid} {traces}")
    translation.activate("de")
    timezone.activate("Asia/Tokyo")
    if action == "autocommit":
        transaction.set_autocommit(False)
    elif action == "atomic":
        transaction.atomic().__enter__()
    if action:
        # In a transaction that this task does not end.
        Order.objects.create(email="uncommitted")


@app.task(max_attempts=1)
def probe_thread(tag: str, action: str = "") -> None:
    run(tag, action)


@app.task(max_attempts=1)
async def probe_loop(tag: str, action: str = "") -> None:
    await sync_to_async(run)(tag, action)


@app.task(max_attempts=1, run_in="process")
def probe_process(tag: str, action: str = "") -> None:
    run(tag, action)


@app.task(max_attempts=1)
async def iterate(tag: str) -> None:
    """Read rows in several fetches of one cursor, while other jobs begin and end."""
    count = 0
    async for _ in Order.objects.order_by("id").aiterator(chunk_size=1):
        if count == 1:
            for number in range(3):
                other = await probe_loop.aenqueue(f"{tag}-{number}")
                while (await app.astatus(other.id)).state != "unknown":  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
        count += 1
    await Order.objects.acreate(email=f"{tag} {count}")
