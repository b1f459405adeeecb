"""Run a scenario with servers, workers, enqueuers and faults, and check its history."""

import logging
import random
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg

from tests.laboratory.faults import Injector
from tests.laboratory.fleet import Fleet, NodeFleet, Surroundings
from tests.laboratory.history_checker import (
    Expectations,
    History,
    Journal,
    Report,
    check,
    install_audit,
    read_audit,
)
from tests.laboratory.load import KEEPING_TASKS, LIMITED_TASKS, Load, Plan
from tests.laboratory.metrics import MetricsReport, compare_counters
from tests.laboratory.scenarios import Scenario, schedule
from tests.laboratory.servers import DATABASE, SCHEMA, Pair, Primary
from tests.laboratory.versions import ROOT, SOURCE, migrate, unpack
from tests.support.proxy import Proxy

CRONTAB = "* * * * * tick ?id=every-minute&fill=10m\n"
MINUTE = 60.0

# Seconds after the last fault in which all jobs must end.
QUIET_WITHIN = 120.0

UNFINISHED = f"""
select count(*)
from {SCHEMA}._private_jobs
where locked_by is not null or is_available
"""

RENTED_SLOTS = f"""
select limit_name, slot, pool_id
from {SCHEMA}_ext.slots
where pool_id is not null
"""

logger = logging.getLogger("laboratory")


@dataclass
class Outcome:
    """The result of a run."""

    scenario: Scenario
    report: Report
    metrics: MetricsReport
    history: History
    faults: dict[str, int]
    acknowledged: int
    seconds: float
    exits: list[str]
    slow_to_stop: list[str]
    failed_starts: int
    # The number of processes of the older version, and of this version.
    versions: tuple[int, int]
    # How Node workers ended before the end of the run.
    node_ends: list[str]

    def lines(self) -> list[str]:
        faults = ", ".join(f"{kind} {count}" for kind, count in sorted(self.faults.items()))
        return [
            f"scenario {self.scenario.name}, seed {self.scenario.seed}: "
            f"{self.acknowledged} jobs acknowledged in {self.seconds:.0f} s, "
            f"{self.scenario.processes} processes, {len(self.history.changes)} changes",
            f"faults: {sum(self.faults.values())} ({faults})",
            *self._versions(),
            *self.report.lines(),
        ]

    def to_json(self) -> dict[str, Any]:
        return {
            "scenario": self.scenario.name,
            "seed": self.scenario.seed,
            "acknowledged": self.acknowledged,
            "seconds": round(self.seconds),
            "processes": self.scenario.processes,
            "node_workers": self.scenario.node_workers,
            "versions": self._versions(),
            "node_ends": self.node_ends,
            "threshold": self.scenario.threshold,
            "changes": len(self.history.changes),
            "faults": self.faults,
            "exits": self.exits,
            "slow_to_stop": self.slow_to_stop,
            "failed_starts": self.failed_starts,
            "report": self.report.to_json(),
        }

    def _versions(self) -> list[str]:
        if self.scenario.upgrade_from is None:
            return []
        older, ours = self.versions
        return [f"processes: {older} of {self.scenario.upgrade_from}, then {ours} of this version"]


def run_scenario(scenario: Scenario, folder: Path, major: int = 18) -> Outcome:
    """Run a scenario and return its outcome."""
    with Laboratory(scenario, folder, major) as laboratory:
        return laboratory.run()


class Laboratory:
    """The servers, proxies and processes of a run."""

    def __init__(self, scenario: Scenario, folder: Path, major: int) -> None:
        self._scenario = scenario
        self._folder = folder
        settings = ("max_connections=300",)
        kind = Pair if scenario.has_standby else Primary
        self._servers = kind(major, settings)
        self._stack = ExitStack()
        self._watching = threading.Event()
        self._all_added = threading.Event()
        self._exits: list[str] = []

    def __enter__(self) -> "Laboratory":
        self._stack.enter_context(self._servers)
        if isinstance(self._servers, Pair):
            self._servers.synchronize()
        self._servers.create_database(DATABASE)
        self._direct = self._servers.dsn(DATABASE)
        self._source = self._version()
        migrate(self._direct, SCHEMA, self._source)
        install_audit(self._direct, SCHEMA)
        self._proxies = [self._stack.enter_context(Proxy(port)) for port in self._servers.ports]
        around = self._around = self._surroundings()
        self._fleet = Fleet(around, self._scenario.processes, random.Random(self._scenario.seed))
        self._nodes = NodeFleet(self._for_node(around), self._scenario.node_workers)
        self._stack.callback(self._end_all)
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def run(self) -> Outcome:
        began = time.monotonic()
        load = Load(self._around.dsn, SCHEMA, self._folder, self._plan(), self._scenario.draw)
        journal = Journal(self._folder / "faults.jsonl")
        injector = Injector(self._scenario, self._servers, self._proxies, self._fleet, journal)
        self._fleet.start()
        with self._watched():
            load.start()
            self._follow_schedule(injector)
            load_ends = time.monotonic() + QUIET_WITHIN
            while not load.is_done and time.monotonic() < load_ends:
                time.sleep(0.1)
            load.stop()
            self._all_added.set()
            injector.join()
            self._heal()
            healed_at = time.time()
            self._wait_until_quiet()
        slow = self._fleet.stop()
        self._nodes.stop()
        # Reading the history can take minutes.
        ended_at = time.time()
        history = read_audit(self._direct, SCHEMA)
        history.read_journals(self._folder)
        report = check(history, self._asked(history, healed_at, ended_at))
        killed = [life.name for life in self._fleet.lives if life.process.poll() != 0]
        return Outcome(
            metrics=compare_counters(history, self._folder, killed),
            scenario=self._scenario,
            report=report,
            history=history,
            faults=dict(sorted(injector.counts.items())),
            acknowledged=load.acknowledged,
            seconds=time.monotonic() - began,
            exits=self._exits,
            slow_to_stop=slow,
            failed_starts=self._fleet.failed_starts,
            versions=self._fleet.versions(ROOT / SOURCE),
            node_ends=self._nodes.ends,
        )

    # Phases

    def _follow_schedule(self, injector: Injector) -> None:
        began = time.monotonic()
        for moment in schedule(self._scenario):
            time.sleep(max(0.0, began + moment.at - time.monotonic()))
            injector.inject(moment)

    @contextmanager
    def _watched(self) -> Iterator[None]:
        """Record and replace workers that end by themselves, during the block."""
        thread = threading.Thread(target=self._watch, daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._watching.set()
            thread.join()

    def _watch(self) -> None:
        while not self._watching.wait(0.3):
            self._exits += self._fleet.look()
            # Without new jobs, an idle worker looks like a blocked one.
            if not self._all_added.is_set():
                self._nodes.look()

    def _heal(self) -> None:
        for proxy in self._proxies:
            proxy.heal()

    def _wait_until_quiet(self) -> None:
        deadline = time.monotonic() + QUIET_WITHIN
        while time.monotonic() < deadline:
            try:
                with psycopg.connect(self._direct) as connection:
                    found = connection.execute(UNFINISHED.encode()).fetchone()
                if found == (0,):
                    break
            except psycopg.Error:
                logger.info("the database does not answer yet")
            time.sleep(0.2)
        # Stop away from the start of a minute, so that the last minute of the crontab is known.
        while self._scenario.with_cron and not 8 <= time.time() % MINUTE <= 50:
            time.sleep(0.5)

    def _end_all(self) -> None:
        self._fleet.stop(5)
        self._nodes.stop()

    # Settings

    def _plan(self) -> Plan:
        scenario = self._scenario
        return Plan(jobs=scenario.jobs, rate=scenario.rate, seed=scenario.seed)

    def _surroundings(self) -> Surroundings:
        crontab = None
        if self._scenario.with_cron:
            crontab = self._folder / "crontab"
            crontab.write_text(CRONTAB)
        return Surroundings(
            dsn=self._servers.dsn(DATABASE, [proxy.port for proxy in self._proxies]),
            schema=SCHEMA,
            folder=self._folder,
            threshold=self._scenario.threshold,
            crontab=crontab,
            more={**self._scenario.more, **self._limit_variables()},
            source=self._source,
        )

    def _limit_variables(self) -> dict[str, str]:
        slots = self._scenario.slots
        return {} if slots is None else {"LABORATORY_SLOTS": str(slots)}

    def _read_rented_slots(self) -> list[str]:
        """Return the slots that are rented, and who rents them, after all workers have stopped."""
        with psycopg.connect(self._direct) as connection:
            return [
                f"{number} of {limit!r} by {pool}"
                for limit, number, pool in connection.execute(RENTED_SLOTS.encode()).fetchall()
            ]

    def _version(self) -> Path:
        """Return the source of the version that runs first."""
        commit = self._scenario.upgrade_from
        return unpack(commit, self._folder / "older") if commit else ROOT / SOURCE

    def _for_node(self, around: Surroundings) -> Surroundings:
        # The driver of Node takes one host.
        url = f"postgres://postgres@127.0.0.1:{self._proxies[0].port}/{DATABASE}"
        return Surroundings(dsn=url, schema=SCHEMA, folder=self._folder, threshold=around.threshold)

    def _asked(self, history: History, healed_at: float, ended_at: float) -> Expectations:
        mixed = self._scenario.node_workers > 0
        return Expectations(
            counts_process=(lambda name: name.startswith("py-")) if mixed else None,
            cron_minutes=self._minutes(history, ended_at) if self._scenario.with_cron else None,
            transactional_tasks=("pay",),
            # Node workers and older versions keep nothing.
            keeping_tasks=() if mixed or self._scenario.upgrade_from else KEEPING_TASKS,
            concurrency_limits=(
                () if self._scenario.slots is None else [(LIMITED_TASKS, self._scenario.slots)]
            ),
            rented_slots=self._read_rented_slots() if self._scenario.slots is not None else (),
            must_finish=not mixed,
            healed_at=healed_at,
            exits=self._exits,
        )

    def _minutes(self, history: History, ended_at: float) -> dict[str, list[float]]:
        """Return the minutes of each crontab from its registration to the end of the workers."""
        known = [
            change.new.known_since  # type: ignore[union-attr]  # a row of crontabs
            for change in history.changes
            if type(change.new).__name__ == "CrontabRow"
        ]
        if not known:
            return {"every-minute": []}
        first = (min(known) // MINUTE + 1) * MINUTE
        count = int((ended_at - first) // MINUTE) + 1
        return {"every-minute": [first + MINUTE * number for number in range(count)]}
