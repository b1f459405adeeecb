"""Ours: `graphile-worker --app benchmarks.programs.ours`."""

from benchmarks.programs.words import Counter, dsn, say_late
from graphile_worker import App

app = App(dsn())
counter = Counter()


@app.task
async def noop(id: int) -> None:
    counter.count()


@app.task
async def ping(sent: int) -> None:
    say_late(sent)
