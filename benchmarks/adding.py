"""How many jobs a program adds in a second: a call for each, and a thousand in a call."""

from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.contenders import WorkerContender
from benchmarks.processes import environment, running
from benchmarks.rounds import Figures, alternated, ratios, summary
from benchmarks.server import Server

BATCH = 1000


def adding(
    server: Server, contenders: Sequence[WorkerContender], *, jobs: int, rounds: int
) -> dict[str, Any]:
    measures = {each.name: _measure(server, each, jobs) for each in contenders}
    found = alternated(measures, rounds)
    return {
        "settings": {"jobs": jobs, "batch": BATCH, "rounds": rounds},
        "contenders": {
            each.name: {"label": each.label, **summary(found[each.name])} for each in contenders
        },
        "ratio_of": "in_batches",
        "ratios": ratios(found, contenders[0].name, "in_batches"),
    }


def _measure(server: Server, contender: WorkerContender, jobs: int) -> Callable[[], Figures]:
    def measure() -> Figures:
        with server.database(contender.kind, contender.install) as database:
            told = environment(database, jobs=jobs, concurrency=1, batch=BATCH)
            with running(contender.adding(), told) as program:
                said = program.wait_for_line("in_batches")
        return {"one_by_one": said["one_by_one"], "in_batches": said["in_batches"]}

    return measure
