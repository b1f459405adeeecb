"""Trivial jobs, one worker process each: how many in a second, and at what cost.

`direct` is the same without local queues, one fetch for each job.
"""

from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.contenders import Contender
from benchmarks.rounds import Figures, alternated, ratios, summary
from benchmarks.server import Server


def throughput(
    server: Server, contenders: Sequence[Contender], *, jobs: int, rounds: int
) -> dict[str, Any]:
    measures = {each.name: _measure(server, each, jobs) for each in contenders}
    found = alternated(measures, rounds)
    return {
        "settings": {"jobs": jobs, "rounds": rounds},
        "contenders": {
            each.name: {"label": each.label, "settings": each.settings, **summary(found[each.name])}
            for each in contenders
        },
        "ratio_of": "jobs_per_second",
        "ratios": ratios(found, contenders[0].name, "jobs_per_second"),
    }


def _measure(server: Server, contender: Contender, jobs: int) -> Callable[[], Figures]:
    def measure() -> Figures:
        with server.database(contender.kind, contender.install) as database:
            return contender.drain(database, jobs).figures()

    return measure
