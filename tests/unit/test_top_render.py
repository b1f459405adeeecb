"""The screen: lines that fit, whatever the size of the terminal and whatever others wrote."""

import itertools

import pytest

from graphile_worker._cli.top.render import Frame, render, render_all
from graphile_worker._cli.top.text import Line, TextStyle, line_width, render_plain
from graphile_worker._cli.top.view import ScreenPage, TaskSort, View
from graphile_worker._sql.identifiers import Schemas
from graphile_worker.ops.alerts import find_alerts
from graphile_worker.ops.pools import PoolHealth
from graphile_worker.ops.snapshot import LockedQueue
from graphile_worker.ops.states import JobState
from graphile_worker.ops.trends import SnapshotHistory
from tests.support.snapshots import make_locked, make_pool, make_snapshot, make_task

SCHEMAS = Schemas.from_names("graphile_worker")
NASTY = "\x1b[31m名前\u202e" + "long" * 30 + "\n\t\ud800"


def watched(*snapshots) -> SnapshotHistory:
    watch = SnapshotHistory(snapshots[0])
    for each in snapshots[1:]:
        watch.add(each)
    return watch


def frame(watch: SnapshotHistory, columns: int = 160, rows: int = 50, **given) -> Frame:
    view = given.pop("view", View())
    return Frame(
        history=watch,
        alerts=find_alerts(watch, SCHEMAS),
        schemas=SCHEMAS,
        view=view,
        columns=columns,
        rows=rows,
        **given,
    )


def screen(*args, **given) -> list[str]:
    return [render_plain(line) for line in render(frame(*args, **given))]


def trouble() -> SnapshotHistory:
    """All that can be wrong at once, with names that could do harm."""
    tasks = [
        make_task(
            f"{NASTY}{n}",
            ready=n * 1_000_000,
            oldest_ready=10.0**n,
            first_ready=1,
            waiting=4,
            retrying=500,
            failed=n,
            scheduled=9,
            newest_failing=7,
            error=NASTY,
        )
        for n in range(1, 12)
    ]
    pools = [
        make_pool(f"{NASTY}{n}", health=health, host=NASTY, jobs=n, tasks=(NASTY,))
        for n, health in enumerate(PoolHealth)
    ]
    queue = LockedQueue(name=NASTY, pool_id=f"{NASTY}1", age=9e9, waiting=3, first_waiting=5)
    locked = [
        make_locked(n, task_identifier=NASTY, queue_name=NASTY, pool_id=NASTY, age=float(n**5))
        for n in range(1, 60)
    ]
    given = {"pools": tuple(pools), "queues": (queue,), "locked": tuple(locked)}
    return watched(
        make_snapshot(make_task("x")),
        make_snapshot(*tasks, after=10, rows_added=10_000_000, has_hidden_rows=True, **given),
    )


def late() -> SnapshotHistory:
    task = make_task(ready=3, oldest_ready=90.0, first_ready=5, running=1)
    return watched(make_snapshot(task, pools=(make_pool(),)))


def calm() -> SnapshotHistory:
    return watched(make_snapshot(), make_snapshot(after=10))


SIZES = [(160, 50), (60, 20), (80, 24), (130, 24), (129, 60), (40, 12), (20, 6), (300, 100)]
VIEWS = [
    View(page=page, has_detail=detail, cursor=cursor, filter=wanted)
    for page, detail, cursor, wanted in itertools.product(
        ScreenPage, (False, True), (0, 999), ("", "nothing")
    )
]
OTHERS = [View(has_help=True), View(is_editing_filter=True, filter=NASTY), View(is_paused=True)]


@pytest.mark.parametrize("size", SIZES, ids=lambda size: "x".join(map(str, size)))
@pytest.mark.parametrize("watch", [trouble(), calm()], ids=["trouble", "calm"])
def test_every_line_fits_and_there_are_as_many_as_rows(size, watch):
    columns, rows = size
    frames = [frame(watch, columns, rows, view=view) for view in [*VIEWS, *OTHERS]]
    for each in [*frames, frame(watch, columns, rows, outage=NASTY)]:
        lines = render(each)

        assert len(lines) == rows
        assert max(map(line_width, lines)) <= columns
        assert all(text.isprintable() for line in lines for text, _ in line)


@pytest.mark.parametrize("size", [(0, 0), (1, 1), (19, 50), (160, 5)])
def test_a_terminal_that_is_too_small_is_told_so(size):
    [line] = screen(trouble(), *size)

    assert "Too small: make the terminal larger."[: max(0, size[0] - 1)] in line


def test_on_paper_nothing_is_left_out():
    lines = [render_plain(line) for line in render_all(frame(trouble(), 120, 24))]

    assert sum(line.lstrip()[:2].strip().isdecimal() for line in lines) >= 59


def test_an_empty_queue_says_so():
    lines = screen(calm())

    assert lines[0].startswith("graphile-worker top  shop/graphile_worker  level 20")
    assert lines[0].endswith("12:00:10 UTC  every 2s")
    assert lines[1] == "● HEALTHY  nothing is wrong"
    assert lines[2].startswith(
        "READY 0   RUNNING 0   SCHEDULED 0   FAILED 0   ADDED 0/s   DONE 0/s"
    )
    assert "There are no jobs." in lines
    assert "No worker shows itself." in "\n".join(lines)


def test_numbers_stand_on_top():
    pools = (make_pool(jobs=2),)
    watch = watched(
        make_snapshot(pools=pools),
        make_snapshot(
            make_task(ready=12_000, running=2, retrying=3, failed=4),
            after=10,
            rows_added=410,
            rows_deleted=810,
            pools=pools,
        ),
    )

    text = "\n".join(screen(watch, columns=300))

    assert (
        "READY 12,000   OLDEST 1.0s   RUNNING 2/10   RETRYING 3   SCHEDULED 0   FAILED 4   "
        "ADDED 41/s   DONE 81/s   DRAINS in 5m   WORKERS 1 alive" in text
    )


def test_more_jobs_than_slots_are_only_fetched():
    watch = watched(make_snapshot(make_task(running=14), pools=(make_pool(jobs=14),)))

    assert "RUNNING 10/10   FETCHED 4" in "\n".join(screen(watch))


def test_where_others_work_too_nobody_knows_how_many_slots_there_are():
    node = make_pool("pool-3fa94c1d77e0aa19b2", health=PoolHealth.UNKNOWN, jobs=1)
    watch = watched(make_snapshot(make_task(running=14), pools=(make_pool(), node)))

    assert "RUNNING 14   SCHED" in "\n".join(screen(watch))


def test_a_backlog_that_grows_never_drains():
    watch = watched(make_snapshot(), make_snapshot(make_task(ready=500), after=10, rows_added=500))

    assert "DRAINS never" in "\n".join(screen(watch))


def test_running_jobs_and_workers_stand_beside_each_other_where_it_is_wide():
    watch = watched(make_snapshot(pools=(make_pool(),), locked=(make_locked(),)))

    wide = [line for line in screen(watch) if "RUNNING" in line and "WORKER" in line]
    tall = [line for line in screen(watch, columns=100) if line.startswith("WORKER")]

    assert any("LIFE" in line for line in wide)
    assert len(tall) == 1


def test_the_most_important_columns_stay_where_it_is_narrow():
    watch = watched(make_snapshot(make_task("send_email", ready=5, oldest_ready=70.0, failed=2)))

    [row] = [line for line in screen(watch, 34, 12) if line.startswith("send_email")]

    assert row.split() == ["send_email", "1m10s", "5"]


def test_what_is_cut_says_where_the_rest_is():
    tasks = [make_task(f"task {n}", ready=1) for n in range(50)]

    assert "press 2" in "\n".join(screen(watched(make_snapshot(*tasks)), 60, 20))


def test_late_tasks_are_red_and_first():
    watch = watched(
        make_snapshot(
            make_task("a", ready=9_000), make_task("b", ready=1, oldest_ready=400.0, running=1)
        )
    )

    lines = render(frame(watch, view=View(page=ScreenPage.TASKS)))
    rows = [line for line in lines if render_plain(line)[:2] in ("a ", "b ")]

    assert [render_plain(row)[0] for row in rows] == ["b", "a"]
    assert ("6m40s", TextStyle.BAD) in [
        (text.strip(), style) for line in render(frame(watch)) for text, style in line
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
def test_tasks_are_sorted_as_one_likes(sort, first):
    tasks = [
        make_task("many", ready=9),
        make_task("busy", running=3),
        make_task("sad", failed=2),
        make_task("a"),
    ]

    lines = screen(watched(make_snapshot(*tasks)), view=View(page=ScreenPage.TASKS, sort=sort))
    heads = next(n for n, line in enumerate(lines) if line.startswith("TASK"))

    assert lines[heads + 1].split()[0] == first
    assert "▼" in lines[heads]


def test_a_filter_shows_only_tasks_that_hold_it():
    watch = watched(
        make_snapshot(
            make_task("send_email"),
            make_task("render_pdf"),
            locked=(make_locked(), make_locked(8, task_identifier="render_pdf")),
        )
    )

    text = "\n".join(screen(watch, view=View(filter="PDF")))

    assert "render_pdf" in text
    assert "send_email" not in text
    assert "resize" not in text
    assert "/PDF" in text


def test_what_calls_for_attention_has_what_to_type():
    watch = late()

    text = "\n".join(screen(watch))

    assert "▲ DEGRADED  1 warning" in text
    assert "▲ resize is late: a job has been ready for 1m30s" in text
    assert "  $ graphile-worker jobs why 5" in text


def test_other_pages_name_the_worst_in_one_line():
    watch = late()

    lines = screen(watch, view=View(page=ScreenPage.WORKERS))

    assert lines[1] == "▲ DEGRADED  1 warning: resize is late: a job has been ready for 1m30s"


def test_details_of_a_row_have_what_to_type():
    task = make_task(ready=1, first_ready=5, failed=1, newest_failing=9, error="Boom: x\nTrace")
    dead = make_pool("lost", health=PoolHealth.DEAD, jobs=1)
    watch = watched(make_snapshot(task, locked=(make_locked(),), pools=(dead,)))

    said = {
        page: "\n".join(screen(watch, view=View(page=page, has_detail=True)))
        for page in (ScreenPage.TASKS, ScreenPage.RUNNING, ScreenPage.WORKERS)
    }

    assert "$ graphile-worker jobs why 5" in said[ScreenPage.TASKS]
    assert "job 9: Boom: x" in said[ScreenPage.TASKS]
    assert "$ graphile-worker jobs show 7" in said[ScreenPage.RUNNING]
    assert "$ graphile-worker workers recover lost" in said[ScreenPage.WORKERS]


def test_a_database_that_is_away_is_said_above_what_was_seen_last():
    watch = watched(make_snapshot(make_task("send_email", ready=3)))

    lines = screen(watch, outage="connection refused", snapshot_age_seconds=12.0)

    assert lines[1] == " DATABASE AWAY, last seen 12s ago: connection refused"
    assert any(line.startswith("send_email") for line in lines)


def test_looks_that_are_seldom_say_how_long_ago_the_last_was():
    assert screen(calm(), interval_seconds=21.0, snapshot_age_seconds=14.0)[0].endswith(
        "14s ago, every 21s"
    )
    assert screen(calm(), view=View(is_paused=True))[0].endswith("PAUSED")


def test_a_stale_lock_stands_out():
    stale = make_locked(state=JobState.STALE, age=20_000.0)

    lines: list[Line] = render(frame(watched(make_snapshot(locked=(stale,)))))

    assert ("5h33m", TextStyle.BAD) in [
        (text.strip(), style) for line in lines for text, style in line
    ]
