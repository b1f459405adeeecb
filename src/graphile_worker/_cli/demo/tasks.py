"""The app of the workers of the demo: `--app graphile_worker._cli.demo.tasks`."""

import asyncio
import random
import time

from graphile_worker._bench.worker import wait_for_start
from graphile_worker.app import App

# The workers stop with the process that started them.
app = App(lifespan=wait_for_start)


@app.task
async def send_email(to: str) -> None:
    await asyncio.sleep(random.uniform(0.01, 0.05))


@app.task
def render_video(seconds: float) -> None:
    time.sleep(seconds)


@app.task
async def call_webhook(url: str) -> None:
    await asyncio.sleep(0.1)
    if random.random() < 0.5:
        raise TimeoutError(f"{url} did not answer within 30 s")


@app.task
async def update_ledger(account: int) -> None:
    await asyncio.sleep(0.4)
