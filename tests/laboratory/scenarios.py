"""Scenarios: numbers of jobs, workers and faults. The time of each fault is drawn from a seed."""

import random
from collections.abc import Mapping
from dataclasses import dataclass, field

from tests.laboratory.load import Draw, drawn, kept, limited, paid
from tests.laboratory.versions import before_the_last_migration


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """A run of the laboratory. Its seed determines the schedule, but not the timing."""

    name: str
    seed: int
    jobs: int
    # Jobs per second, of all enqueuers together.
    rate: float
    processes: int
    faults: Mapping[str, int]
    draw: Draw = drawn
    node_workers: int = 0
    # The commit of the workers that run first, and are replaced one by one.
    upgrade_from: str | None = None
    # The lease duration in seconds: a worker without heartbeats for longer is dead.
    threshold: float = 2.0
    with_cron: bool = True
    more: Mapping[str, str] = field(default_factory=dict)
    # The slots that two tasks share, if they have a limit.
    slots: int | None = None

    @property
    def seconds(self) -> float:
        """The time in which its jobs are added."""
        return self.jobs / self.rate

    @property
    def has_standby(self) -> bool:
        return "promotion" in self.faults


@dataclass(frozen=True, order=True)
class Moment:
    """A fault, `at` seconds after the start; `draw` seeds its target and its details."""

    at: float
    kind: str
    draw: int


def schedule(scenario: Scenario) -> list[Moment]:
    """Return the faults of a run in the order of time."""
    rng = random.Random(scenario.seed)
    moments = []
    for kind, count in sorted(scenario.faults.items()):
        for number in range(count):
            # Each fault has an equal share of the run, and comes at any point of it.
            at = (number + rng.random()) * scenario.seconds / count
            moments.append(Moment(at, kind, rng.randrange(2**31)))
    return sorted(moments)


def smoke(seed: int) -> Scenario:
    """The scenario of the gate."""
    faults = {
        "sigkill": 10,
        "zombie": 3,
        "term": 2,
        "backend": 6,
        "partition": 3,
        "half_open": 2,
        "cut": 4,
        "cut_enqueuer": 4,
        "crash": 2,
    }
    return Scenario(
        name="smoke", seed=seed, jobs=5_000, rate=125, processes=4, faults=faults, with_cron=False
    )


def long(seed: int) -> Scenario:
    """All kinds of faults, in less than an hour."""
    faults = {
        "sigkill": 310,
        "zombie": 52,
        "term": 30,
        "backend": 105,
        "partition": 52,
        "half_open": 20,
        "cut": 40,
        "cut_enqueuer": 40,
        "reset": 20,
        "crash": 31,
        "promotion": 10,
    }
    return Scenario(name="long", seed=seed, jobs=200_000, rate=100, processes=8, faults=faults)


def million(seed: int) -> Scenario:
    """A quarter of a million jobs: four seeds are a million jobs under 2,000 faults."""
    faults = {
        "sigkill": 212,
        "zombie": 36,
        "term": 20,
        "backend": 74,
        "partition": 36,
        "half_open": 14,
        "cut": 30,
        "cut_enqueuer": 30,
        "reset": 14,
        "crash": 24,
        "promotion": 10,
    }
    return Scenario(name="million", seed=seed, jobs=250_000, rate=240, processes=8, faults=faults)


def mixed(seed: int) -> Scenario:
    """Two Node workers beside Python workers."""
    faults = {
        "sigkill": 150,
        "zombie": 25,
        "backend": 100,
        "partition": 25,
        "cut": 25,
        "crash": 12,
    }
    return Scenario(
        name="mixed",
        seed=seed,
        jobs=60_000,
        rate=80,
        processes=6,
        faults=faults,
        node_workers=2,
        with_cron=False,
    )


def transactional(seed: int) -> Scenario:
    """Jobs whose effect and end are one transaction."""
    faults = {"sigkill": 60, "zombie": 10, "backend": 60, "partition": 10, "cut": 60, "crash": 8}
    return Scenario(
        name="transactional",
        seed=seed,
        jobs=20_000,
        rate=80,
        processes=6,
        faults=faults,
        draw=paid,
        with_cron=False,
    )


def results(seed: int) -> Scenario:
    """Jobs of which most keep their results, with every fault but a promotion."""
    faults = {
        "sigkill": 60,
        "zombie": 10,
        "term": 6,
        "backend": 60,
        "partition": 10,
        "half_open": 4,
        "cut": 60,
        "cut_enqueuer": 10,
        "reset": 6,
        "crash": 8,
    }
    return Scenario(
        name="results",
        seed=seed,
        jobs=20_000,
        rate=60,
        processes=4,
        faults=faults,
        draw=kept,
        with_cron=False,
    )


def upgrade(seed: int) -> Scenario:
    """Workers of an older version are replaced one by one, and the schema is migrated."""
    faults = {"upgrade": 6, "sigkill": 12, "backend": 6}
    return Scenario(
        name="upgrade",
        seed=seed,
        jobs=6_000,
        rate=80,
        processes=6,
        faults=faults,
        with_cron=False,
        upgrade_from=before_the_last_migration(),
    )


def limits(seed: int) -> Scenario:
    """Jobs of which most share a concurrency limit, for 5 minutes."""
    faults = {
        "sigkill": 40,
        "zombie": 10,
        "term": 8,
        "backend": 30,
        "partition": 8,
        "half_open": 3,
        "cut": 20,
        "cut_enqueuer": 5,
        "crash": 4,
    }
    return Scenario(
        name="limits",
        seed=seed,
        jobs=9_000,
        rate=30,
        processes=8,
        faults=faults,
        draw=limited,
        with_cron=False,
        slots=3,
    )


SCENARIOS = {
    each.__name__: each
    for each in (smoke, long, million, mixed, transactional, results, limits, upgrade)
}
