"""The screen of `top`: its lines fit every terminal, with any text in the database."""

import itertools
from datetime import timedelta
from typing import Any

import pytest

from graphile_worker._cli.top.content import Frame
from graphile_worker._cli.top.screen import render, render_all
from graphile_worker._cli.top.text import BAD, StyledLine, line_width, render_plain
from graphile_worker._cli.top.view import Page, TaskSort, View
from graphile_worker._sql.identifiers import Schemas
from graphile_worker.ops.diagnostics.queue import diagnose_queue
from graphile_worker.ops.history import EndedJob, RecentHistory
from graphile_worker.ops.pools import PoolHealth
from graphile_worker.ops.snapshot import LockedQueue
from graphile_worker.ops.states import JobState
from graphile_worker.ops.trends import SnapshotHistory
from graphile_worker.results import Progress
from tests.support.snapshots import (
    NOON,
    make_history,
    make_locked,
    make_pool,
    make_snapshot,
    make_task,
)

pytestmark = pytest.mark.single_version

SCHEMAS = Schemas.from_names("graphile_worker")
HOSTILE = "\x1b[31m名前\u202e" + "long" * 30 + "\n\t\ud800"


def make_frame(history: SnapshotHistory, columns: int = 160, rows: int = 50, **values) -> Frame:
    view = values.pop("view", View())
    return Frame(
        history=history,
        alerts=diagnose_queue(history, SCHEMAS),
        schemas=SCHEMAS,
        view=view,
        columns=columns,
        rows=rows,
        **values,
    )


def render_text(*args, **values) -> list[str]:
    return [render_plain(line) for line in render(make_frame(*args, **values))]


def make_failing_queue() -> SnapshotHistory:
    """A queue with every alert, whose names contain control characters."""
    tasks = [
        make_task(
            f"{HOSTILE}{n}",
            ready=n * 1_000_000,
            oldest_ready=10.0**n,
            first_ready=1,
            waiting=4,
            retrying=500,
            failed=n,
            scheduled=9,
            newest_failing=7,
            error=HOSTILE,
        )
        for n in range(1, 12)
    ]
    pools = [
        make_pool(f"{HOSTILE}{n}", health=health, host=HOSTILE, jobs=n, tasks=(HOSTILE,))
        for n, health in enumerate(PoolHealth)
    ]
    queue = LockedQueue(name=HOSTILE, pool_id=f"{HOSTILE}1", age=9e9, waiting=3, first_waiting=5)
    locked = [
        make_locked(
            n, task_identifier=HOSTILE, queue_name=HOSTILE, pool_id=HOSTILE, age=float(n**5)
        )
        for n in range(1, 60)
    ]
    values = {"pools": tuple(pools), "queues": (queue,), "locked": tuple(locked)}
    return make_history(
        make_snapshot(make_task("x")),
        make_snapshot(*tasks, after=10, rows_added=10_000_000, has_hidden_rows=True, **values),
    )


def make_late_queue() -> SnapshotHistory:
    task = make_task(ready=3, oldest_ready=90.0, first_ready=5, running=1)
    return make_history(make_snapshot(task, pools=(make_pool(),)))


def make_empty_queue() -> SnapshotHistory:
    return make_history(make_snapshot(), make_snapshot(after=10))


SIZES = [(160, 50), (60, 20), (80, 24), (130, 24), (129, 60), (40, 12), (20, 6), (300, 100)]
VIEWS = [
    View(page=page, has_detail=detail, cursor=cursor, filter=text)
    for page, detail, cursor, text in itertools.product(
        Page, (False, True), (0, 999), ("", "nothing")
    )
]
OTHER_VIEWS = [
    View(has_help=True),
    View(is_editing_filter=True, filter=HOSTILE),
    View(is_paused=True),
]


@pytest.mark.parametrize("size", SIZES, ids=lambda size: "x".join(map(str, size)))
@pytest.mark.parametrize(
    "history", [make_failing_queue(), make_empty_queue()], ids=["failing", "empty"]
)
def test_a_screen_has_one_line_per_row_and_each_fits(size, history):
    columns, rows = size
    frames = [make_frame(history, columns, rows, view=view) for view in [*VIEWS, *OTHER_VIEWS]]
    for each in [*frames, make_frame(history, columns, rows, outage=HOSTILE)]:
        lines = render(each)

        assert len(lines) == rows
        assert max(map(line_width, lines)) <= columns
        assert all(text.isprintable() for line in lines for text, _ in line)


@pytest.mark.parametrize("size", [(0, 0), (1, 1), (19, 50), (160, 5)])
def test_a_terminal_that_is_too_small_shows_a_message(size):
    [line] = render_text(make_failing_queue(), *size)

    assert "Terminal too small: enlarge it."[: max(0, size[0] - 1)] in line


def test_once_prints_every_running_job():
    lines = [render_plain(line) for line in render_all(make_frame(make_failing_queue(), 120, 24))]

    assert sum(line.lstrip()[:2].strip().isdecimal() for line in lines) >= 59


def test_an_empty_queue_shows_zeros_and_empty_tables():
    lines = render_text(make_empty_queue())

    assert lines[0].startswith("graphile-worker top  shop/graphile_worker  level 20")
    assert lines[0].endswith("12:00:10 UTC  every 2s")
    assert lines[1] == "● HEALTHY  nothing is wrong"
    assert lines[2].startswith(
        "READY 0   RUNNING 0   SCHEDULED 0   FAILED 0   ADDED 0/s   DONE 0/s"
    )
    assert "No jobs." in lines
    assert "No workers are running." in "\n".join(lines)


def test_the_header_shows_counts_rates_and_workers():
    pools = (make_pool(jobs=2),)
    history = make_history(
        make_snapshot(pools=pools),
        make_snapshot(
            make_task(ready=12_000, running=2, retrying=3, failed=4),
            after=10,
            rows_added=410,
            rows_deleted=810,
            pools=pools,
        ),
    )

    text = "\n".join(render_text(history, columns=300))

    assert (
        "READY 12,000   OLDEST 1.0s   RUNNING 2/10   RETRYING 3   SCHEDULED 0   FAILED 4   "
        "ADDED 41/s   DONE 81/s   DRAINS in 5m   WORKERS 1 alive" in text
    )


def test_locked_jobs_beyond_the_slots_count_as_fetched():
    history = make_history(make_snapshot(make_task(running=14), pools=(make_pool(jobs=14),)))

    assert "RUNNING 10/10   FETCHED 4" in "\n".join(render_text(history))


def test_slots_are_left_out_beside_workers_of_unknown_concurrency():
    node = make_pool("pool-3fa94c1d77e0aa19b2", health=PoolHealth.UNKNOWN, jobs=1)
    history = make_history(make_snapshot(make_task(running=14), pools=(make_pool(), node)))

    assert "RUNNING 14   SCHED" in "\n".join(render_text(history))


def test_a_backlog_that_grows_never_drains():
    history = make_history(
        make_snapshot(), make_snapshot(make_task(ready=500), after=10, rows_added=500)
    )

    assert "DRAINS never" in "\n".join(render_text(history))


def test_a_wide_terminal_shows_running_jobs_beside_workers():
    history = make_history(make_snapshot(pools=(make_pool(),), locked=(make_locked(),)))

    wide = [line for line in render_text(history) if "RUNNING" in line and "WORKER" in line]
    tall = [line for line in render_text(history, columns=100) if line.startswith("WORKER")]

    assert any("HEALTH" in line for line in wide)
    assert len(tall) == 1


def test_a_narrow_terminal_keeps_the_most_important_columns():
    history = make_history(
        make_snapshot(make_task("send_email", ready=5, oldest_ready=70.0, failed=2))
    )

    [row] = [line for line in render_text(history, 34, 12) if line.startswith("send_email")]

    assert row.split() == ["send_email", "1m10s", "5"]


def test_the_last_line_names_all_keys_and_the_pages_if_they_fit():
    last = {
        columns: render_text(make_empty_queue(), columns=columns)[-1] for columns in (70, 100, 110)
    }

    assert all("? help  " in line for line in last.values())
    assert last[70].endswith("page 1 of 1-6")
    assert last[100].endswith("page 1 of 1-6")
    assert last[110].endswith("5 alerts  6 ended")


def test_a_truncated_table_names_the_page_with_all_rows():
    tasks = [make_task(f"task {n}", ready=1) for n in range(50)]

    assert "press 2" in "\n".join(render_text(make_history(make_snapshot(*tasks)), 60, 20))


def test_late_tasks_are_red_and_first():
    history = make_history(
        make_snapshot(
            make_task("a", ready=9_000), make_task("b", ready=1, oldest_ready=400.0, running=1)
        )
    )

    lines = render(make_frame(history, view=View(page=Page.TASKS)))
    rows = [line for line in lines if render_plain(line)[:2] in ("a ", "b ")]

    assert [render_plain(row)[0] for row in rows] == ["b", "a"]
    assert ("6m40s", BAD) in [
        (text.strip(), style) for line in render(make_frame(history)) for text, style in line
    ]


@pytest.mark.parametrize(
    ("sort", "first"),
    [
        (TaskSort.READY, "many"),
        (TaskSort.RUNNING, "busy"),
        (TaskSort.FAILING, "sad"),
        (TaskSort.NAME, "a"),
    ],
)
def test_tasks_are_sorted_by_the_chosen_column(sort, first):
    tasks = [
        make_task("many", ready=9),
        make_task("busy", running=3),
        make_task("sad", failed=2),
        make_task("a"),
    ]

    lines = render_text(make_history(make_snapshot(*tasks)), view=View(page=Page.TASKS, sort=sort))
    header = next(n for n, line in enumerate(lines) if line.startswith("TASK"))

    assert lines[header + 1].split()[0] == first
    assert "▼" in lines[header]


def test_a_filter_shows_only_tasks_that_contain_it():
    history = make_history(
        make_snapshot(
            make_task("send_email"),
            make_task("render_pdf"),
            locked=(make_locked(), make_locked(8, task_identifier="render_pdf")),
        )
    )

    text = "\n".join(render_text(history, view=View(filter="PDF")))

    assert "render_pdf" in text
    assert "send_email" not in text
    assert "resize" not in text
    assert "/PDF" in text


def test_alerts_show_the_command_to_type():
    history = make_late_queue()

    text = "\n".join(render_text(history))

    assert "▲ DEGRADED  1 warning" in text
    assert "▲ resize is late: a job has been ready for 1m30s" in text
    assert "  $ graphile-worker jobs why 5" in text


def test_other_pages_show_the_worst_alert_in_one_line():
    history = make_late_queue()

    lines = render_text(history, view=View(page=Page.WORKERS))

    assert lines[1] == "▲ DEGRADED  1 warning: resize is late: a job has been ready for 1m30s"


def test_the_details_of_a_row_show_the_command_to_type():
    task = make_task(ready=1, first_ready=5, failed=1, newest_failing=9, error="Boom: x\nTrace")
    dead = make_pool("lost", health=PoolHealth.DEAD, jobs=1)
    history = make_history(make_snapshot(task, locked=(make_locked(),), pools=(dead,)))

    texts = {
        page: "\n".join(render_text(history, view=View(page=page, has_detail=True)))
        for page in (Page.TASKS, Page.RUNNING, Page.WORKERS)
    }

    assert "$ graphile-worker jobs why 5" in texts[Page.TASKS]
    assert "job 9: Boom: x" in texts[Page.TASKS]
    assert "$ graphile-worker jobs show 7" in texts[Page.RUNNING]
    assert "$ graphile-worker workers recover lost" in texts[Page.WORKERS]


def test_an_outage_is_shown_above_the_last_snapshot():
    history = make_history(make_snapshot(make_task("send_email", ready=3)))

    lines = render_text(history, outage="connection refused", snapshot_age_seconds=12.0)

    assert lines[1] == " DATABASE UNREACHABLE, last snapshot 12s ago: connection refused"
    assert any(line.startswith("send_email") for line in lines)


def test_a_long_interval_shows_the_age_of_the_snapshot():
    assert render_text(make_empty_queue(), interval_seconds=21.0, snapshot_age_seconds=14.0)[
        0
    ].endswith("14s ago, every 21s")
    assert render_text(make_empty_queue(), view=View(is_paused=True))[0].endswith("PAUSED")


def test_a_stale_lock_is_red():
    stale = make_locked(state=JobState.STALE, age=20_000.0)

    lines: list[StyledLine] = render(make_frame(make_history(make_snapshot(locked=(stale,)))))

    assert ("5h33m", BAD) in [(text.strip(), style) for line in lines for text, style in line]


def make_ended(job_id: int = 7, **values: Any) -> EndedJob:
    defaults: dict[str, Any] = {
        "task_identifier": "resize",
        "succeeded": True,
        "attempts": 1,
        "created_at": NOON - timedelta(minutes=2),
        "run_at": NOON - timedelta(minutes=2),
        "started_at": NOON - timedelta(seconds=63),
        "finished_at": NOON - timedelta(seconds=60),
        "worker": "pypool-000000000000000001",
        "error": None,
        "has_result": False,
    }
    return EndedJob(job_id=job_id, **{**defaults, **values})


def test_ended_jobs_have_a_page():
    failed = make_ended(8, succeeded=False, task_identifier=HOSTILE, error=f"ValueError: {HOSTILE}")
    recent = RecentHistory((make_ended(), failed))
    history = make_history(make_snapshot())
    view = View(page=Page.ENDED, cursor=1, has_detail=True)

    lines = render_text(history, view=view, recent=recent)
    other = render_text(history, view=View(page=Page.ENDED))

    head = next(n for n, line in enumerate(lines) if "ENDED" in line)
    assert lines[head].split() == ["JOB", "ENDED", "STATE", "AGO", "TOOK", "TRY", "ERROR"]
    assert lines[head + 1].split() == ["7", "resize", "succeeded", "1m", "3.0s", "1"]
    assert "failed" in lines[head + 2]
    assert "$ graphile-worker jobs history 8" in lines
    assert "No ended jobs. Tasks with a Retention keep their outcomes." in other
    for columns in (20, 60, 200):
        frame = make_frame(history, columns, view=view, recent=recent)
        assert all(line_width(line) <= columns for line in [*render(frame), *render_all(frame)])


def test_running_jobs_show_their_progress():
    history = make_history(make_snapshot(locked=(make_locked(id=5), make_locked(id=6))))
    progress = Progress(fraction=0.4, message=f"page 4 {HOSTILE}", updated_at=NOON)

    lines = render_text(history, recent=RecentHistory((), {5: progress}))
    plain = render_text(history, recent=RecentHistory())

    assert any(line.split()[:1] == ["5"] and "40 %, page 4" in line for line in lines)
    assert any("PROGRESS" in line for line in lines)
    assert not any("PROGRESS" in line for line in plain)
