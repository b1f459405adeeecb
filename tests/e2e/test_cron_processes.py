"""Python and Node processes on one crontab, killed and restarted: each tick exactly once."""

import random
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from itertools import product

import pytest

from graphile_worker._cron.backfill import MINUTE, ceil_minute
from tests.conftest import TestDatabase
from tests.support.processes import Program, Programs, eventually
from tests.support.sql import Sql
from tests.support.tools import MODULES, NODE

ITEMS = ("plain", "queued", "keyed", "kept", "urgent")

CRONTAB = """
    * * * * * note ?id=plain {item: "plain"}
    * * * * * note ?id=queued&queue=line {item: "queued"}
    * * * * * note ?id=keyed&jobKey=one {item: "keyed"}
    * * * * * note ?id=kept&queue=line&jobKey=two&jobKeyMode=preserve_run_at {item: "kept"}
    * * * * * note ?id=urgent&priority=-3&max=2 {item: "urgent"}
"""

STARTED = "cron has started"

PYTHON = f"""
    import sys

    from graphile_worker import App
    from graphile_worker.events import CronStarted

    app = App()

    @app.task
    async def note():
        pass

    @app.on(CronStarted)
    def say(event):
        print("{STARTED}", file=sys.stderr, flush=True)
"""

NODE_WORKER = f"""
    const [, , reference, connectionString, schema] = process.argv;
    const {{ EventEmitter }} = require("events");
    const {{ run }} = require(reference);

    const events = new EventEmitter();
    events.on("cron:started", () => console.error("{STARTED}"));
    const taskList = {{ note: async () => {{}} }};
    run({{ connectionString, schema, taskList, crontabFile: "crontab", events }});
"""

# Each time that a job is added, or another takes its place by its key; and whose session it was.
WATCH = """
create table ticks (item text, ts timestamptz, at timestamptz, language text);
create function watch() returns trigger language plpgsql as $body$
begin
  if tg_op = 'INSERT' or new.revision <> old.revision then
    insert into ticks values (
      new.payload ->> 'item',
      (new.payload -> '_cron' ->> 'ts')::timestamptz,
      clock_timestamp(),
      current_setting('application_name')
    );
  end if;
  return null;
end
$body$;
create trigger watch after insert or update on :schema._private_jobs
for each row execute function watch();
"""

# How long a process that was killed is away, in seconds.
LONGEST_ABSENCE = 3.0


class Place:
    """One of the six: whoever runs there, until it is killed."""

    def __init__(self, language: str, start: Callable[[], Program]) -> None:
        self.language = language
        self._start = start
        self._program = start()
        self._back_at = 0.0

    @property
    def is_up(self) -> bool:
        """Does its cron run?"""
        return self._program.is_running and STARTED in self._program.err

    def kill(self, absence: float) -> None:
        self._program.kill()
        self._back_at = time.monotonic() + absence

    def come_back(self) -> None:
        """Start anew if it was killed and has been away for long enough."""
        if not self._program.is_running and time.monotonic() >= self._back_at:
            self._program = self._start()


class Fleet:
    """Four processes of Python and two of Node, all with one crontab."""

    def __init__(self, database: TestDatabase, programs: Programs) -> None:
        self._database = database
        self._programs = programs
        self._random = random.Random(6)
        self.kills: list[float] = []
        programs.write("crontab", CRONTAB)
        programs.write("noting.py", PYTHON)
        programs.write("noting.js", NODE_WORKER)
        self._places = [Place("python", self._python) for _ in range(4)]
        self._places += [Place("node", self._node) for _ in range(2)]

    def wait_until_up(self) -> None:
        eventually(lambda: all(place.is_up for place in self._places), "all six are up", 90)

    def choose_guard(self, language: str) -> Place:
        """One that is up, and will be left alone."""

        def look() -> list[Place]:
            self._come_back()
            return [place for place in self._places if place.language == language and place.is_up]

        return self._random.choice(eventually(look, f"a process of {language} is up"))

    def kill_one(self, guard: Place) -> None:
        """At a random moment that is not far away, any but the guard."""
        time.sleep(pause(time.time() % 60, self._random))
        victims = [place for place in self._places if place is not guard and place.is_up]
        if victims:
            self.kills.append(time.time())
            self._random.choice(victims).kill(self._random.uniform(0, LONGEST_ABSENCE))
        self._come_back()

    def _come_back(self) -> None:
        for place in self._places:
            place.come_back()

    def _python(self) -> Program:
        url = f"{self._database.url}?application_name=python"
        return self._programs.command("--app", "noting:app", DATABASE_URL=url)

    def _node(self) -> Program:
        url = f"{self._database.url}?application_name=node"
        command = [str(NODE), "noting.js", str(MODULES / "gw018"), url, self._database.schema]
        return self._programs.start(command, {})


def pause(second: float, chance: random.Random) -> float:
    """How long until the next is killed, at this second of a minute.

    Most matter where a minute begins; before that all have time to come up again.
    """
    if 53.0 <= second < 59.95:
        return 59.95 - second
    if second >= 59.95 or second < 0.3:
        return chance.uniform(0, 0.06)
    return chance.uniform(0.5, 2.0)


@pytest.mark.slow_io
@pytest.mark.feature("F274")
@pytest.mark.timeout(400)
def test_processes_of_two_languages_killed_at_random_add_each_tick_exactly_once(
    database, programs, sql, figure
):
    sql.run(WATCH)
    fleet = Fleet(database, programs)
    fleet.wait_until_up()
    first = ceil_minute(sql.value("select clock_timestamp()"))
    minutes = [first + count * MINUTE for count in range(4)]

    for minute, language in zip(minutes, ("python", "node") * 2, strict=True):
        # One that was up before the minute begins sees it through: nobody else need do so.
        guard = fleet.choose_guard(language)
        while items_of(sql, minute) != set(ITEMS):
            assert time.time() < minute.timestamp() + 30, f"not all of {minute}"
            fleet.kill_one(guard)

    counts = {(item, ts): count for item, ts, count in sql.run(COUNTS)}
    assert set(counts.values()) == {1}, "some were added twice"
    assert set(product(ITEMS, minutes)) <= set(counts)
    assert sql.run("select * from ticks where at < ts") == []
    figure(said(fleet.kills, minutes, sql))


COUNTS = "select item, ts, count(*) from ticks group by item, ts"


def items_of(sql: Sql, minute: datetime) -> set[str]:
    return {item for (item,) in sql.run("select item from ticks where ts = $1", minute)}


def said(kills: Sequence[float], minutes: Sequence[datetime], sql: Sql) -> str:
    begins = [minute.timestamp() for minute in minutes]
    close = sum(any(abs(kill - begin) < 0.5 for begin in begins) for kill in kills)
    winners = dict(sql.run("select language, count(*) from ticks group by language"))
    return (
        f"cron by 4 Python and 2 Node processes: {len(kills)} kills, {close} of them within half "
        f"a second of a minute's begin; {sum(winners.values())} ticks once each, added by {winners}"
    )
