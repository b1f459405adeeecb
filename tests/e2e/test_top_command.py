"""`graphile-worker top` on a real terminal beside a real worker: whole screens, at little cost."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest

from graphile_worker import JobSpec, sync
from graphile_worker._cli.top.text import display_width
from graphile_worker._db.sync import SyncPsycopgDatabase
from graphile_worker._sql.identifiers import Schemas
from graphile_worker._sql.queries.workers import register_pool
from tests.conftest import TestDatabase
from tests.support.cluster import Cluster
from tests.support.hostile import TEXT
from tests.support.processes import CLEARED_VARIABLES, INSTALLED, Program, Programs, eventually
from tests.support.sql import Sql
from tests.support.tmux import TIMEOUT_SECONDS, Tmux

WIDE, NARROW = (160, 50), (60, 20)

# What is switched on of a terminal that nobody has taken.
AS_ALWAYS = {"echo", "icanon", "ixon", "isig"}

# But for 39 and 49, which is as always.
COLOUR = re.compile(r"\x1b\[(\d+;)*[349][0-7]m")

# A busy machine makes looks seldom, so that what waits for one may take long.
pytestmark = pytest.mark.timeout(180)

TASKS = {
    "send_email": "import asyncio\nasync def task(payload): await asyncio.sleep(0.01)\n",
    "import_feed": "import asyncio\nasync def task(payload): await asyncio.sleep(2)\n",
    "render_pdf": "async def task(payload): raise TimeoutError('upstream took 30 s')\n",
}

DONE = re.compile(r"ADDED [\d,]+/s +DONE [1-9]")

# Whatever a line of the overview may be; anything else is a line that was torn.
# A look may come late on a busy machine.
AGE = r"\d\S*[smh]"
TASK = rf"\S+ +({AGE}|-) +[\d,]+|\S+ +({AGE}|-) +-"
JOB = rf" *\d+ +\S+ +{AGE} +\d+/\d+ +.*"
WORKER = rf"pypool-[0-9a-f]{{18}} +alive +{AGE} +\d+/\d+ +python.*"
LINES = [
    r"(graphile-worker top  )?shop/graphile_worker( +level 20)? +[\d:]{8} UTC  .*every [\d.]+s",
    r"[●▲✕] (HEALTHY|DEGRADED|STALLED)  .*",
    r"([A-Z]+ \S+( \S+)*( {3}|$))+",
    r"[▲✕·] .*",
    r"  .*",
    r" +JOB  RUNNING +FOR.*",
    r"TASK +OLDEST▼ +READY.*",
    r"WORKER +LIFE.*",
    r"(There are no jobs|No job is locked|No worker shows itself)\..*",
    r"[\d,]+ more: press [2345] *",
    r"q quit  p pause  s sort  / filter  \? help +.*",
    rf"({TASK}).*",
    rf"{JOB}({WORKER}|WORKER +LIFE.*)?",
    WORKER,
    r"",
]


def torn(lines: list[str], columns: int, rows: int) -> list[str]:
    """The lines of an overview that cannot be as they were meant."""
    assert len(lines) == rows
    wrong = [line for line in lines if not any(re.fullmatch(each, line) for each in LINES)]
    wrong += [line for line in lines if display_width(line) > columns]
    ends = {0: "UTC", 1: "H|D|S", rows - 1: "q quit"}
    return wrong + [lines[n] for n, words in ends.items() if not re.search(words, lines[n])]


class Desk:
    """Where somebody watches a queue: a server, a worker, and terminals."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.cluster = cluster
        self.folder = folder
        self.database = TestDatabase("shop", cluster, "graphile_worker")
        self.programs = Programs.for_database(self.database, folder)
        for name, text in TASKS.items():
            self.programs.write(f"tasks/{name}.py", text)

    def top(self, size: tuple[int, int] = WIDE, *flags: str, **variables: str) -> Tmux:
        return self.terminal(shlex.join([INSTALLED, "top", *flags]), size, **variables)

    def terminal(self, command: str, size: tuple[int, int], **variables: str) -> Tmux:
        inherited = {
            name: value for name, value in os.environ.items() if not CLEARED_VARIABLES.match(name)
        }
        # By a role of its own, so that its statements can be told from all others.
        url = self.database.url.replace("postgres@", "watcher@")
        given = {**inherited, "DATABASE_URL": url, "LC_ALL": "C.UTF-8", **variables}
        return Tmux(self.folder, command, given, columns=size[0], rows=size[1])

    def worker(self) -> Program:
        return self.programs.worker("-j", "4")

    def adding(self) -> Program:
        """A program that adds jobs until it is ended."""
        return self.programs.python(
            """
            import itertools
            import time
            from graphile_worker import JobSpec, sync

            with sync.Client() as client:
                for n in itertools.count():
                    names = ["send_email"] * 10 + ["render_pdf"] + ["import_feed"] * (n % 10 == 0)
                    client.add_jobs([JobSpec(name) for name in names])
                    time.sleep(0.1)
            """
        )


@pytest.fixture(scope="module")
def server(pytestconfig: pytest.Config) -> Iterator[Cluster]:
    settings = ["shared_preload_libraries=pg_stat_statements", "pg_stat_statements.track=all"]
    server = Cluster(pytestconfig.getoption("--pg"), settings).start()
    server.create_database("template_shop")
    sql = Sql(server.dsn("template_shop"), "graphile_worker")
    sql.run("create extension pg_stat_statements")
    sql.run("create role watcher superuser login")
    sql.close()
    with sync.Client(server.dsn("template_shop")) as client:
        client.migrate()
    yield server
    server.stop()


@pytest.fixture
def desk(server: Cluster, tmp_path: Path) -> Iterator[Desk]:
    server.create_database("shop", "template_shop")
    desk = Desk(server, tmp_path)
    with desk.programs:
        yield desk
    server.drop_database("shop")


@pytest.fixture
def client(desk: Desk) -> Iterator[sync.Client]:
    with sync.Client(desk.database.dsn) as client:
        yield client


def spent(desk: Desk) -> float:
    """Seconds that the server worked for whoever watches."""
    sql = Sql(desk.database.dsn, desk.database.schema)
    found = sql.value(
        "select coalesce(sum(total_exec_time + total_plan_time), 0) / 1000 "
        "from pg_stat_statements where userid = 'watcher'::regrole"
    )
    sql.close()
    return float(found)


def settled(desk: Desk) -> float | None:
    """What the server spent, once that does not grow any more."""
    before = spent(desk)
    time.sleep(1)
    return before if spent(desk) == before else None


@pytest.mark.serial
@pytest.mark.parametrize("size", [WIDE, NARROW], ids=["160x50", "60x20"])
def test_screens_are_whole_under_load_and_cost_less_than_one_percent(
    desk: Desk, size: tuple[int, int], figure: Callable[[str], None]
):
    desk.worker()
    desk.adding()
    with desk.top(size) as terminal:
        terminal.wait_for_text("import_feed")
        before, began = spent(desk), time.monotonic()
        screens = [terminal.screen() for _ in range(40)]
        shown = {tuple(screen) for screen in screens}

        def changes() -> bool:
            shown.add(tuple(terminal.screen()))
            return len(shown) > 2

        eventually(changes, "the screen changes", TIMEOUT_SECONDS)
        # Larger, smaller, and back: what was there before must be gone.
        for columns, rows in [(100, 30), (70, 16), size]:
            terminal.resize(columns, rows)
            eventually(
                partial(is_whole, terminal, columns, rows), "it is drawn anew", TIMEOUT_SECONDS
            )
        share = (spent(desk) - before) / (time.monotonic() - began)
        eventually(
            lambda: DONE.search(" ".join(terminal.screen())), "jobs are done", TIMEOUT_SECONDS
        )
        last = terminal.screen()

    desk.folder.joinpath("screen.txt").write_text("\n".join(last), encoding="utf-8")
    assert [wrong for screen in screens for wrong in torn(screen, *size)] == []
    assert share < 0.01
    figure(f"top, {size[0]}x{size[1]} beside a busy worker: {share:.2%} of one backend")


def is_whole(terminal: Tmux, columns: int, rows: int) -> bool:
    lines = terminal.screen()
    return len(lines) == rows and torn(lines, columns, rows) == []


def test_keys_lead_to_pages_and_back(desk: Desk, client: sync.Client):
    enter_worker(desk)
    client.add_jobs([JobSpec("send_email"), JobSpec("render_pdf")])
    with desk.top(NARROW) as terminal:
        terminal.wait_for_text("send_email")

        terminal.press("/", "p", "d", "f")
        assert not any("send_email" in line for line in terminal.wait_for_text("task: pdf"))
        terminal.press("Enter", "2", "Enter")
        terminal.wait_for_text("graphile-worker jobs why 2")
        terminal.press("Escape", "5")
        terminal.wait_for_text("Nothing calls for attention.")
        terminal.press("?")
        terminal.wait_for_text("leave; so does Ctrl-C")
        terminal.press("x", "p")
        terminal.wait_for_text("PAUSED")
        terminal.press("q")
        terminal.wait_for_text("ended 0")


def enter_worker(desk: Desk) -> None:
    """One that lives and knows all tasks, so that nothing calls for attention for a while."""
    database = SyncPsycopgDatabase(desk.database.dsn, Schemas.from_names("graphile_worker"))
    details = {"runtime": "python", "tasks": list(TASKS)}
    database.run(register_pool("pypool-0123456789abcdef01", timedelta(hours=1), details))
    database.close()


def test_text_of_others_cannot_control_the_terminal(desk: Desk, client: sync.Client):
    # Neither names nor errors can hold NUL.
    name = TEXT.replace("\x00", "")[:128]
    sql = Sql(desk.database.dsn, desk.database.schema)
    database = SyncPsycopgDatabase(desk.database.dsn, Schemas.from_names("graphile_worker"))
    details = {"runtime": name, "host": name, "version": name, "pid": 1, "tasks": [name]}
    database.run(register_pool(name, timedelta(hours=1), details))
    database.close()
    jobs = client.add_jobs([JobSpec(name, queue_name=f"{n}{name}"[:128]) for n in range(4)])
    client.permanently_fail_jobs([jobs[0].id], name * 2)
    sql.run(
        "update :schema._private_jobs set locked_by = $1, locked_at = now() where id = $2",
        name,
        jobs[1].id,
    )
    sql.run("update :schema._private_jobs set run_at = now() - interval '1 h' where id > 2")
    sql.close()

    with desk.top(WIDE, "--interval", "500ms") as terminal:
        terminal.wait_for_text("TASK")
        screens = []
        for page in "12345":
            terminal.press(page, "Enter")
            screens.append(terminal.screen())
            terminal.press("Escape")
        for lines in screens:
            assert len(lines) == WIDE[1]
            assert lines[0].startswith("graphile-worker top  shop/graphile_worker")
            assert lines[-1].startswith("q quit")
            assert all(line.isprintable() and display_width(line) <= WIDE[0] for line in lines)
        assert sum("begin" in line for lines in screens for line in lines) > 5
        assert terminal.state() == "1 0 0"
        assert "forged" not in terminal.title
        terminal.press("q")
        terminal.wait_for_text("ended 0")


def test_a_pause_leaves_the_database_alone(desk: Desk, client: sync.Client):
    with desk.top(WIDE, "--interval", "500ms") as terminal:
        terminal.wait_for_text("There are no jobs.")
        terminal.press("p")
        terminal.wait_for_text("PAUSED")
        client.add_job("send_email")
        before = eventually(lambda: settled(desk), "the last look has ended")
        time.sleep(1.5)
        assert spent(desk) == before

        terminal.press("p")
        terminal.wait_for_text("send_email")


@pytest.mark.parametrize("how", ["q", "C-c", signal.SIGTERM, signal.SIGHUP])
def test_the_terminal_is_given_back_whatever_ends_it(desk: Desk, how: str | signal.Signals):
    with desk.top(NARROW) as terminal:
        terminal.wait_for_text("HEALTHY")
        assert terminal.state() == "1 0 0"

        if isinstance(how, signal.Signals):
            os.kill(terminal.pid, how)
        else:
            terminal.press(how)

        assert terminal.wait_for_text("ended")[0] == "ended 0"
        assert terminal.state() == "0 1 1"
        assert settings_of(terminal) >= AS_ALWAYS


def test_the_terminal_is_given_back_after_an_error_of_ours(desk: Desk):
    program = desk.programs.write(
        "faulty.py",
        """
        import sys
        from graphile_worker._cli.main import main
        from graphile_worker._cli.top import live

        seen = live.render
        live.render = lambda frame: 1 / 0 if frame.view.is_paused else seen(frame)
        sys.argv[1:] = ["top"]
        main()
        """,
    )
    with desk.terminal(shlex.join([sys.executable, str(program)]), NARROW) as terminal:
        terminal.wait_for_text("HEALTHY")

        terminal.press("p")

        assert "ZeroDivisionError" in "\n".join(terminal.wait_for_text("ended 1"))
        assert terminal.state() == "0 1 1"
        assert settings_of(terminal) >= AS_ALWAYS


def settings_of(terminal: Tmux) -> set[str]:
    """What is switched on of the settings of a terminal."""
    done = subprocess.run(
        ["stty", "-F", terminal.terminal, "-a"], capture_output=True, text=True, check=True
    )
    return {word for word in done.stdout.replace(";", " ").split() if not word.startswith("-")}


def test_ctrl_z_gives_the_shell_its_screen_and_fg_comes_back(desk: Desk):
    with desk.top(NARROW) as terminal:
        terminal.wait_for_text("HEALTHY")
        pid = terminal.pid

        terminal.press("C-z")
        eventually(lambda: terminal.state() == "0 1 1", "the shell has its screen")
        eventually(lambda: state_of(pid) == "T", "it stands still")
        os.kill(pid, signal.SIGCONT)

        terminal.wait_for_text("HEALTHY")
        assert terminal.state() == "1 0 0"


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_when_the_database_is_away_the_last_screen_stays_and_it_goes_on(
    desk: Desk, client: sync.Client
):
    client.add_job("send_email")
    with desk.top(WIDE, "--interval", "500ms") as terminal:
        terminal.wait_for_text("send_email")
        desk.cluster.halt()

        away = terminal.wait_for_text("DATABASE AWAY, last seen")
        assert any(line.startswith("send_email") for line in away)
        desk.cluster.launch()

        eventually(lambda: "AWAY" not in terminal.lines[1], "it is back", TIMEOUT_SECONDS)
        client.add_job("render_pdf")
        assert torn(terminal.wait_for_text("render_pdf"), *WIDE) == []
        terminal.press("q")
        terminal.wait_for_text("ended 0")


def test_colours_are_left_out_where_nobody_wants_them(desk: Desk):
    with desk.top(NARROW) as coloured:
        coloured.wait_for_text("HEALTHY")
        assert COLOUR.search(coloured.colours)
    with desk.top(NARROW, NO_COLOR="1") as plain:
        plain.wait_for_text("HEALTHY")
        assert not COLOUR.search(plain.colours)


def test_once_it_is_printed_and_that_is_all(desk: Desk, client: sync.Client):
    client.add_job("send_email")

    done = desk.programs.without_fork.run_to_end(
        "top", "--once", "--interval", "500ms", COLUMNS="100"
    )

    assert (done.code, done.err) == (0, "")
    assert "\x1b" not in done.out
    assert done.out.startswith("graphile-worker top  shop/graphile_worker  level 20")
    assert re.search(r"^send_email +\S+s +1 ", done.out, re.MULTILINE)
    assert max(map(len, done.out.splitlines())) <= 100


def test_as_json_it_is_one_object(desk: Desk, client: sync.Client):
    client.add_job("send_email", queue_name="q")

    done = desk.programs.run_to_end("top", "--once", "--json", "--interval", "500ms")

    found = json.loads(done.out)
    assert found["verdict"] == "healthy"
    assert found["totals"]["ready"] == 1
    assert found["tasks"][0]["identifier"] == "send_email"
    assert found["rates"].keys() == {"added", "completed"}
    assert (found["attention"], found["workers"], found["locked"]) == ([], [], [])


def test_without_once_json_is_a_line_for_each_look(desk: Desk):
    program = desk.programs.command("top", "--json", "--interval", "500ms")

    lines = eventually(
        lambda: program.out.splitlines() if program.out.count("\n") > 2 else [], "three looks"
    )

    assert {json.loads(line)["schema"] for line in lines[:2]} == {"graphile_worker"}


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ([], "top needs a terminal to draw on: add --once or --json"),
        (["--once", "-s", "nowhere"], "schema 'nowhere' is not installed"),
        (["--once", "-c", "postgres://127.0.0.1:1/x"], "connection"),
    ],
)
def test_what_cannot_be_is_one_line_and_1(desk: Desk, flags: list[str], words: str):
    done = desk.programs.run_to_end("top", *flags)

    assert done.code == 1
    assert words in done.err
    assert "Traceback" not in done.err


def test_an_interval_that_would_be_too_short_is_refused(desk: Desk):
    done = desk.programs.run_to_end("top", "--interval", "10ms")

    assert done.code == 2
    assert "expected a time of 500ms or more" in done.err
