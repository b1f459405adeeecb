"""A program of coroutines, with one task that blocks."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

from graphile_worker import App, JobContext, SyncJobContext


class Mailer:
    def __init__(self) -> None:
        self.sent: list[str] = []


@asynccontextmanager
async def lifespan() -> AsyncIterator[Mailer]:
    yield Mailer()


app = App(lifespan=lifespan)


@app.task
async def send_email(ctx: JobContext[Mailer], to: str) -> None:
    ctx.deps.sent.append(to)


@app.task
def resize(ctx: SyncJobContext[Mailer], width: int) -> None:
    if width < 0:
        raise ValueError(f"a width of {width}")
    ctx.add_job("send_email", {"to": f"{width} wide"})


async def sign_up(name: str) -> None:
    await send_email.aenqueue(to=name)
    await send_email.using(run_at=timedelta(days=1)).aenqueue(to=f"{name} again")
