"""Scenario: how many jobs, workers and faults; and when each fault comes, drawn from a seed."""

import random
from collections.abc import Mapping
from dataclasses import dataclass, field

from tests.laboratory.load import Draw, drawn, paid
from tests.laboratory.versions import before_the_last_migration


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """One run of the laboratory; its schedule follows from its seed, its timing does not."""

    name: str
    seed: int
    jobs: int
    # A second, by all enqueuers.
    rate: float
    processes: int
    faults: Mapping[str, int]
    draw: Draw = drawn
    node_workers: int = 0
    # The commit whose workers are there first, and are replaced one by one.
    upgrade_from: str | None = None
    # Seconds after which a silent worker counts as dead.
    threshold: float = 2.0
    with_cron: bool = True
    more: Mapping[str, str] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        """How long its jobs take to be added."""
        return self.jobs / self.rate

    @property
    def has_standby(self) -> bool:
        return "promotion" in self.faults


@dataclass(frozen=True, order=True)
class Moment:
    """A fault that is due so many seconds after the start; `draw` says whom it meets, and how."""

    at: float
    kind: str
    draw: int


def schedule(scenario: Scenario) -> list[Moment]:
    """All faults of a run in the order in which they come."""
    rng = random.Random(scenario.seed)
    moments = []
    for kind, count in sorted(scenario.faults.items()):
        for number in range(count):
            # Spread over the run, and anywhere in its share of it.
            at = (number + rng.random()) * scenario.seconds / count
            moments.append(Moment(at, kind, rng.randrange(2**31)))
    return sorted(moments)


def smoke(seed: int) -> Scenario:
    """What every check runs."""
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
    """What is run by command, in less than an hour."""
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


def mixed(seed: int) -> Scenario:
    """Two workers of the reference among ours."""
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
    """Jobs whose effect and end are one."""
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


SCENARIOS = {each.__name__: each for each in (smoke, long, mixed, transactional, upgrade)}
