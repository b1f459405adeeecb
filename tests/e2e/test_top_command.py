"""`graphile-worker top` on a real terminal beside a real worker: complete screens at low cost."""

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

# The flags of a terminal that no program has changed.
DEFAULT_FLAGS = {"echo", "icanon", "ixon", "isig"}

# Without 39 and 49, which reset colors.
COLOR = re.compile(r"\x1b\[(\d+;)*[349][0-7]m")

# On a busy machine snapshots are rare, so a test may wait long for one.
pytestmark = pytest.mark.timeout(180)

TASKS = {
    "send_email": "import asyncio\nasync def task(payload): await asyncio.sleep(0.01)\n",
    "import_feed": "import asyncio\nasync def task(payload): await asyncio.sleep(2)\n",
    "render_pdf": "async def task(payload): raise TimeoutError('upstream took 30 s')\n",
}

DONE = re.compile(r"ADDED [\d,]+/s +DONE [1-9]")

# Every kind of line that the overview contains. Any other line is torn.
# Ages may be long, because snapshots are late on a busy machine.
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
    r"WORKER +HEALTH.*",
    r"(No jobs|No locked jobs|No workers)\..*",
    r"[\d,]+ more: press [2345] *",
    r"q quit  p pause  s sort  / filter  \? help +.*",
    rf"({TASK}).*",
    rf"{JOB}({WORKER}|WORKER +HEALTH.*)?",
    WORKER,
    r"",
]


def find_torn_lines(lines: list[str], columns: int, rows: int) -> list[str]:
    """The lines of an overview that are not complete."""
    assert len(lines) == rows
    wrong = [line for line in lines if not any(re.fullmatch(each, line) for each in LINES)]
    wrong += [line for line in lines if display_width(line) > columns]
    ends = {0: "UTC", 1: "H|D|S", rows - 1: "q quit"}
    return wrong + [lines[n] for n, words in ends.items() if not re.search(words, lines[n])]


class WatchedQueue:
    """A queue with workers, and terminals on which `top` runs."""

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
        # A separate role, so that pg_stat_statements counts only the queries of `top`.
        url = self.database.url.replace("postgres@", "watcher@")
        environment = {**inherited, "DATABASE_URL": url, "LC_ALL": "C.UTF-8", **variables}
        return Tmux(self.folder, command, environment, columns=size[0], rows=size[1])

    def start_worker(self) -> Program:
        return self.programs.worker("-j", "4")

    def start_adding_jobs(self) -> Program:
        """Start a program that adds jobs until it stops."""
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
def queue(server: Cluster, tmp_path: Path) -> Iterator[WatchedQueue]:
    server.create_database("shop", "template_shop")
    queue = WatchedQueue(server, tmp_path)
    with queue.programs:
        yield queue
    server.drop_database("shop")


@pytest.fixture
def client(queue: WatchedQueue) -> Iterator[sync.Client]:
    with sync.Client(queue.database.dsn) as client:
        yield client


def measure_cost(queue: WatchedQueue) -> float:
    """Seconds that the server spent on the queries of `top`."""
    sql = Sql(queue.database.dsn, queue.database.schema)
    found = sql.value(
        "select coalesce(sum(total_exec_time + total_plan_time), 0) / 1000 "
        "from pg_stat_statements where userid = 'watcher'::regrole"
    )
    sql.close()
    return float(found)


def get_final_cost(queue: WatchedQueue) -> float | None:
    """The cost, once it no longer grows."""
    before = measure_cost(queue)
    time.sleep(1)
    return before if measure_cost(queue) == before else None


@pytest.mark.serial
@pytest.mark.parametrize("size", [WIDE, NARROW], ids=["160x50", "60x20"])
def test_screens_under_load_are_complete_and_cost_less_than_one_percent(
    queue: WatchedQueue, size: tuple[int, int], figure: Callable[[str], None]
):
    queue.start_worker()
    queue.start_adding_jobs()
    with queue.top(size) as terminal:
        terminal.wait_for_text("import_feed")
        before, began = measure_cost(queue), time.monotonic()
        screens = [terminal.screen() for _ in range(40)]
        shown = {tuple(screen) for screen in screens}

        def changes() -> bool:
            shown.add(tuple(terminal.screen()))
            return len(shown) > 2

        eventually(changes, "the screen changes", TIMEOUT_SECONDS)
        # Larger, smaller, and back: each resize must redraw everything.
        for columns, rows in [(100, 30), (70, 16), size]:
            terminal.resize(columns, rows)
            eventually(
                partial(is_complete, terminal, columns, rows),
                "the screen is redrawn",
                TIMEOUT_SECONDS,
            )
        share = (measure_cost(queue) - before) / (time.monotonic() - began)
        eventually(
            lambda: DONE.search(" ".join(terminal.screen())), "jobs are completed", TIMEOUT_SECONDS
        )
        last = terminal.screen()

    queue.folder.joinpath("screen.txt").write_text("\n".join(last), encoding="utf-8")
    assert [wrong for screen in screens for wrong in find_torn_lines(screen, *size)] == []
    assert share < 0.01
    figure(f"top, {size[0]}x{size[1]} beside a busy worker: {share:.2%} of one backend")


def is_complete(terminal: Tmux, columns: int, rows: int) -> bool:
    lines = terminal.screen()
    return len(lines) == rows and find_torn_lines(lines, columns, rows) == []


def test_keys_select_pages_filters_details_and_help(queue: WatchedQueue, client: sync.Client):
    register_worker(queue)
    client.add_jobs([JobSpec("send_email"), JobSpec("render_pdf")])
    with queue.top(NARROW) as terminal:
        terminal.wait_for_text("send_email")

        terminal.press("/", "p", "d", "f")
        assert not any("send_email" in line for line in terminal.wait_for_text("task: pdf"))
        terminal.press("Enter", "2", "Enter")
        terminal.wait_for_text("graphile-worker jobs why 2")
        terminal.press("Escape", "5")
        terminal.wait_for_text("No alerts.")
        terminal.press("?")
        terminal.wait_for_text("quit (also Ctrl-C)")
        terminal.press("x", "p")
        terminal.wait_for_text("PAUSED")
        terminal.press("q")
        terminal.wait_for_text("ended 0")


def register_worker(queue: WatchedQueue) -> None:
    """Register a worker with all tasks, so that there are no alerts for an hour."""
    database = SyncPsycopgDatabase(queue.database.dsn, Schemas.from_names("graphile_worker"))
    details = {"runtime": "python", "tasks": list(TASKS)}
    database.run(register_pool("pypool-0123456789abcdef01", timedelta(hours=1), details))
    database.close()


def test_text_from_the_database_cannot_control_the_terminal(
    queue: WatchedQueue, client: sync.Client
):
    # Neither names nor errors can contain NUL.
    name = TEXT.replace("\x00", "")[:128]
    sql = Sql(queue.database.dsn, queue.database.schema)
    database = SyncPsycopgDatabase(queue.database.dsn, Schemas.from_names("graphile_worker"))
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

    with queue.top(WIDE, "--interval", "500ms") as terminal:
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


def test_a_paused_view_sends_no_queries(queue: WatchedQueue, client: sync.Client):
    with queue.top(WIDE, "--interval", "500ms") as terminal:
        terminal.wait_for_text("No jobs.")
        terminal.press("p")
        terminal.wait_for_text("PAUSED")
        client.add_job("send_email")
        before = eventually(lambda: get_final_cost(queue), "the last snapshot has ended")
        time.sleep(1.5)
        assert measure_cost(queue) == before

        terminal.press("p")
        terminal.wait_for_text("send_email")


@pytest.mark.parametrize("how", ["q", "C-c", signal.SIGTERM, signal.SIGHUP])
def test_the_terminal_is_restored_after_keys_and_signals(
    queue: WatchedQueue, how: str | signal.Signals
):
    with queue.top(NARROW) as terminal:
        terminal.wait_for_text("HEALTHY")
        assert terminal.state() == "1 0 0"

        if isinstance(how, signal.Signals):
            os.kill(terminal.pid, how)
        else:
            terminal.press(how)

        assert terminal.wait_for_text("ended")[0] == "ended 0"
        assert terminal.state() == "0 1 1"
        assert get_terminal_flags(terminal) >= DEFAULT_FLAGS


def test_the_terminal_is_restored_after_an_internal_error(queue: WatchedQueue):
    program = queue.programs.write(
        "faulty.py",
        """
        import sys
        from graphile_worker._cli.main import main
        from graphile_worker._cli.top import live

        render = live.render
        live.render = lambda frame: 1 / 0 if frame.view.is_paused else render(frame)
        sys.argv[1:] = ["top"]
        main()
        """,
    )
    with queue.terminal(shlex.join([sys.executable, str(program)]), NARROW) as terminal:
        terminal.wait_for_text("HEALTHY")

        terminal.press("p")

        assert "ZeroDivisionError" in "\n".join(terminal.wait_for_text("ended 1"))
        assert terminal.state() == "0 1 1"
        assert get_terminal_flags(terminal) >= DEFAULT_FLAGS


def get_terminal_flags(terminal: Tmux) -> set[str]:
    """The flags of a terminal that are on."""
    done = subprocess.run(
        ["stty", "-F", terminal.terminal, "-a"], capture_output=True, text=True, check=True
    )
    return {word for word in done.stdout.replace(";", " ").split() if not word.startswith("-")}


def test_ctrl_z_restores_the_screen_of_the_shell_and_fg_resumes(queue: WatchedQueue):
    with queue.top(NARROW) as terminal:
        terminal.wait_for_text("HEALTHY")
        pid = terminal.pid

        terminal.press("C-z")
        eventually(lambda: terminal.state() == "0 1 1", "the screen of the shell is back")
        eventually(lambda: get_process_state(pid) == "T", "the process is stopped")
        os.kill(pid, signal.SIGCONT)

        terminal.wait_for_text("HEALTHY")
        assert terminal.state() == "1 0 0"


def get_process_state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_the_last_snapshot_stays_during_an_outage_and_updates_resume_after_it(
    queue: WatchedQueue, client: sync.Client
):
    client.add_job("send_email")
    with queue.top(WIDE, "--interval", "500ms") as terminal:
        terminal.wait_for_text("send_email")
        queue.cluster.halt()

        outage = terminal.wait_for_text("DATABASE UNREACHABLE, last snapshot")
        assert any(line.startswith("send_email") for line in outage)
        queue.cluster.launch()

        eventually(
            lambda: "UNREACHABLE" not in terminal.lines[1], "the outage is over", TIMEOUT_SECONDS
        )
        client.add_job("render_pdf")
        assert find_torn_lines(terminal.wait_for_text("render_pdf"), *WIDE) == []
        terminal.press("q")
        terminal.wait_for_text("ended 0")


def test_no_color_turns_colors_off(queue: WatchedQueue):
    with queue.top(NARROW) as colored:
        colored.wait_for_text("HEALTHY")
        assert COLOR.search(colored.colored_text)
    with queue.top(NARROW, NO_COLOR="1") as plain:
        plain.wait_for_text("HEALTHY")
        assert not COLOR.search(plain.colored_text)


def test_once_prints_one_snapshot_as_plain_text(queue: WatchedQueue, client: sync.Client):
    client.add_job("send_email")

    done = queue.programs.without_fork.run_to_end(
        "top", "--once", "--interval", "500ms", COLUMNS="100"
    )

    assert (done.code, done.err) == (0, "")
    assert "\x1b" not in done.out
    assert done.out.startswith("graphile-worker top  shop/graphile_worker  level 20")
    assert re.search(r"^send_email +\S+s +1 ", done.out, re.MULTILINE)
    assert max(map(len, done.out.splitlines())) <= 100


def test_once_with_json_prints_one_object(queue: WatchedQueue, client: sync.Client):
    client.add_job("send_email", queue_name="q")

    done = queue.programs.run_to_end("top", "--once", "--json", "--interval", "500ms")

    found = json.loads(done.out)
    assert found["verdict"] == "healthy"
    assert found["totals"]["ready"] == 1
    assert found["tasks"][0]["identifier"] == "send_email"
    assert found["rates"].keys() == {"added", "completed"}
    assert (found["attention"], found["workers"], found["locked"]) == ([], [], [])


def test_json_prints_a_line_for_each_snapshot(queue: WatchedQueue):
    program = queue.programs.command("top", "--json", "--interval", "500ms")

    lines = eventually(
        lambda: program.out.splitlines() if program.out.count("\n") > 2 else [], "three snapshots"
    )

    assert {json.loads(line)["schema"] for line in lines[:2]} == {"graphile_worker"}


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([], "top needs a terminal to draw on. Add --once or --json."),
        (["--once", "-s", "nowhere"], "schema 'nowhere' is not installed"),
        (["--once", "-c", "postgres://127.0.0.1:1/x"], "connection"),
    ],
)
def test_a_top_that_cannot_start_prints_one_line_and_exits_with_1(
    queue: WatchedQueue, flags: list[str], message: str
):
    done = queue.programs.run_to_end("top", *flags)

    assert done.code == 1
    assert message in done.err
    assert "Traceback" not in done.err


def test_an_interval_below_500_ms_is_rejected(queue: WatchedQueue):
    done = queue.programs.run_to_end("top", "--interval", "10ms")

    assert done.code == 2
    assert "expected a duration of 500ms or more" in done.err
