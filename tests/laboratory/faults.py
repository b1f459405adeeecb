"""Inject faults into processes, connections and the server, and record each when it is over."""

import logging
import random
import threading
import time
from collections.abc import Callable
from contextlib import suppress

import psycopg

from tests.laboratory.fleet import Fleet
from tests.laboratory.history_checker import Fault, Journal
from tests.laboratory.load import ENQUEUERS
from tests.laboratory.scenarios import Moment, Scenario
from tests.laboratory.servers import DATABASE, SCHEMA, Pair, Primary
from tests.laboratory.versions import ROOT, SOURCE, migrate
from tests.support.proxy import Blackhole, CutAfterRequest, Mode, OneWay, Proxy, by_application_name

logger = logging.getLogger("laboratory")

# Seconds after which keepalives and the user timeout close a connection: see _db/conninfo.py.
TIMES_OUT = 10.0

VICTIMS = """
select pid, application_name
from pg_stat_activity
where application_name like 'py-%' or application_name like 'node-%'
"""


class Injector:
    """Injects the faults of a schedule, several at a time."""

    def __init__(
        self,
        scenario: Scenario,
        servers: Primary,
        proxies: list[Proxy],
        fleet: Fleet,
        journal: Journal,
    ) -> None:
        self._scenario = scenario
        self._servers = servers
        self._proxies = proxies
        self._fleet = fleet
        self._journal = journal
        self._server_lock = threading.Lock()
        self._noting = threading.Lock()
        self._running: list[threading.Thread] = []
        self.counts: dict[str, int] = {}

    def inject(self, moment: Moment) -> None:
        """Start this fault; `join` waits until all are over."""
        thread = threading.Thread(target=self._run, args=(moment,), daemon=True)
        thread.start()
        self._running.append(thread)

    def join(self) -> None:
        for thread in self._running:
            thread.join()

    def _run(self, moment: Moment) -> None:
        rng = random.Random(moment.draw)
        act: Callable[[random.Random], str | None] = getattr(self, f"_{moment.kind}")
        began = time.time()
        try:
            process = act(rng)
        except Exception:
            logger.exception("fault %s could not be injected", moment.kind)
            return
        if process == "":
            return
        with self._noting:
            self.counts[moment.kind] = self.counts.get(moment.kind, 0) + 1
            kind = "SIGKILL" if moment.kind == "sigkill" else moment.kind
            self._journal.note(Fault(kind, began, process, time.time()))

    # Processes

    def _sigkill(self, rng: random.Random) -> str:
        place = self._place(rng)
        return "" if place is None else self._fleet.kill(place)

    def _zombie(self, rng: random.Random) -> str:
        place = self._place(rng)
        seconds = self._scenario.threshold * rng.uniform(1.5, 3)
        return "" if place is None else self._fleet.freeze(place, seconds)

    def _term(self, rng: random.Random) -> str:
        place = self._place(rng)
        return "" if place is None else self._fleet.replace(place)

    def _upgrade(self, rng: random.Random) -> str:
        """Migrate the schema, then replace a worker of the older version by one of this version."""
        source = ROOT / SOURCE
        behind = self._fleet.behind(source)
        if not behind:
            return ""
        migrate(self._servers.dsn(DATABASE), SCHEMA, source)
        return self._fleet.upgrade(rng.choice(behind), source)

    def _place(self, rng: random.Random) -> int | None:
        """Return the slot of a running worker; wait for one if none runs."""
        for _ in range(100):
            if places := self._fleet.running():
                return rng.choice(places)
            time.sleep(0.1)
        return None

    # Connections

    def _backend(self, rng: random.Random) -> str:
        """The server ends a session of a worker at any point."""
        for _ in range(50):
            with suppress(psycopg.Error), psycopg.connect(self._servers.dsn()) as connection:
                victims = connection.execute(VICTIMS).fetchall()
                if victims:
                    pid, name = rng.choice(sorted(victims))
                    connection.execute("select pg_terminate_backend(%s)", [pid])
                    return str(name)
            time.sleep(0.1)
        return ""

    def _partition(self, rng: random.Random) -> str:
        mode = rng.choice((Blackhole(), Blackhole(), OneWay()))
        name = self._treated(rng, lambda name: self._put(mode, name), rng.uniform(1, 6))
        thread = threading.Thread(target=self._time_out, args=(name,), daemon=True)
        thread.start()
        self._running.append(thread)
        return name

    def _time_out(self, name: str) -> None:
        """Reset connections that lost bytes, as TCP would do without the proxy."""
        time.sleep(TIMES_OUT)
        for proxy in self._proxies:
            proxy.reset(lambda each: each.application_name == name and each.has_gap)

    def _half_open(self, rng: random.Random) -> str:
        """The server's ends of connections disappear without a message to the worker."""

        def act(name: str) -> None:
            for proxy in self._proxies:
                proxy.lose_server(by_application_name(name))

        return self._treated(rng, act, 0)

    def _reset(self, rng: random.Random) -> str:
        def act(name: str) -> None:
            for proxy in self._proxies:
                proxy.reset(by_application_name(name))

        return self._treated(rng, act, 0)

    def _cut(self, rng: random.Random) -> str:
        """The server executes the next request, and its answer is lost."""
        return self._treated(rng, lambda name: self._put(CutAfterRequest(), name), 1)

    def _cut_enqueuer(self, rng: random.Random) -> str:
        """An enqueuer loses an answer, so it cannot know whether its jobs were added."""
        name = f"add-{rng.randrange(ENQUEUERS)}"
        self._put(CutAfterRequest(), name)
        time.sleep(1)
        self._put(Mode.PASS, name)
        return name

    def _treated(self, rng: random.Random, act: Callable[[str], None], seconds: float) -> str:
        place = self._place(rng)
        if place is None:
            return ""
        name = self._fleet.name_of(place)
        act(name)
        if seconds:
            time.sleep(seconds)
            self._put(Mode.PASS, name)
            for proxy in self._proxies:
                proxy.reset(lambda each: each.application_name == name and each.is_abandoned)
        return name

    def _put(self, mode: object, name: str) -> None:
        for proxy in self._proxies:
            proxy.put(mode, by_application_name(name))  # type: ignore[arg-type]  # a treatment

    # The server

    def _crash(self, rng: random.Random) -> None:
        with self._server_lock:
            self._servers.crash_restart(away=rng.choice((0.0, 0.2, 1.0, 3.0)))

    def _restart(self, rng: random.Random) -> None:
        with self._server_lock:
            self._servers.fast_restart(away=rng.choice((0.0, 0.5)))

    def _promotion(self, rng: random.Random) -> None:
        with self._server_lock:
            assert isinstance(self._servers, Pair)
            self._servers.promote()
            time.sleep(rng.uniform(0, 2))
            self._servers.rebuild_standby()
