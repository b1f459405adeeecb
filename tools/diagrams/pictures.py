"""The diagrams of docs/concepts and of the architecture page."""

from collections.abc import Callable, Mapping

from tools.diagrams.drawing import WIDTH, Drawing

MIDDLE = WIDTH / 2


def job_lifecycle() -> Drawing:
    """Draw the states of a job, with words on each transition."""
    drawing = Drawing(
        "Job lifecycle",
        "A job is scheduled or ready when you add it. A worker claims it. If the task returns, the "
        "worker deletes the row. If the task raises, the job is retried after a backoff, or fails "
        "permanently at the last attempt. Shutdown and crash recovery release the job.",
        546,
    )
    drawing.text(MIDDLE, 34, "add_job", anchor="middle", bold=True)
    drawing.arrow((MIDDLE - 38, 29), (68, 29), (68, 82))
    drawing.label(76, 60, "run_at later", anchor="start")
    drawing.arrow((MIDDLE, 42), (MIDDLE, 82))
    drawing.label(MIDDLE + 8, 66, "due now", anchor="start")
    drawing.box(12, 84, 112, 62, "scheduled", "not due yet", kind="plain")
    drawing.box(184, 84, 112, 62, "ready", "can run now", kind="good")
    drawing.box(356, 84, 112, 62, "waiting", "for its queue", kind="late")
    drawing.arrow((124, 115), (182, 115))
    drawing.label(154, 107, "due")
    drawing.arrow((298, 115), (354, 115), both=True)
    drawing.label(326, 107, "queue")
    drawing.label(326, 135, "in use")
    drawing.box(184, 284, 112, 62, "running", "locked", kind="busy")
    drawing.box(356, 284, 112, 62, "stale", "lock remains", kind="bad")
    drawing.arrow((220, 146), (220, 282))
    drawing.label(212, 238, "worker", "claims it", anchor="end")
    drawing.arrow((260, 284), (260, 148))
    drawing.label(268, 238, "shutdown", "or Snooze", anchor="start")
    drawing.arrow((296, 315), (354, 315))
    drawing.label(326, 307, "crash")
    drawing.arrow((412, 284), (412, 188), (284, 188), (284, 148))
    drawing.label(350, 180, "recovery")
    drawing.box(12, 464, 112, 62, "retrying", "in backoff", kind="late")
    drawing.box(184, 464, 112, 62, "done", "row deleted", kind="good")
    drawing.box(356, 464, 112, 62, "failed", "row remains", kind="bad")
    drawing.arrow((MIDDLE, 346), (MIDDLE, 462))
    drawing.label(MIDDLE + 8, 442, "returns", anchor="start")
    drawing.arrow((202, 346), (202, 404), (68, 404), (68, 462))
    drawing.label(130, 396, "task raises")
    drawing.arrow((278, 346), (278, 404), (412, 404), (412, 462))
    drawing.label(352, 376, "last attempt", "or Discard")
    drawing.arrow((36, 464), (36, 188), (196, 188), (196, 148))
    drawing.label(112, 180, "backoff ends")
    return drawing


def how_jobs_are_fetched() -> Drawing:
    """Draw how one worker claims three jobs at 09:01."""
    drawing = Drawing(
        "How jobs are fetched",
        "A worker wakes by NOTIFY or every two seconds and claims three jobs in one statement. It "
        "skips jobs that are locked, wait for a queue, have an unknown task or are not due.",
        608,
    )
    drawing.box(16, 20, 212, 62, "NOTIFY", "a job was added", kind="plain")
    drawing.box(252, 20, 212, 62, "every 2 s", "and after a reconnect", kind="plain")
    drawing.box(
        96, 116, 288, 62, "worker A claims 3 jobs", "it is 09:01 in the database", kind="busy"
    )
    drawing.arrow((122, 82), (122, 114))
    drawing.label(130, 104, "wakes", anchor="start")
    drawing.arrow((358, 82), (358, 114))
    drawing.label(366, 104, "wakes", anchor="start")
    drawing.arrow((MIDDLE, 178), (MIDDLE, 206))
    drawing.label(MIDDLE + 8, 200, "one statement", anchor="start")
    _draw_job_rows(drawing, top=232)
    drawing.text(24, 572, "A claim sets locked_by and locked_at, adds 1", pale=True)
    drawing.text(24, 592, "to attempts, and locks the named queue.", pale=True)
    return drawing


def _draw_job_rows(drawing: Drawing, top: float) -> None:
    for x, head in [(30, "prio"), (82, "due"), (150, "queue"), (240, "worker A")]:
        drawing.text(x, top, head, pale=True)
    rows = [
        ("-5", "08:59", "", "skips it: B locked it", "area"),
        ("0", "08:57", "", "claims it", "good"),
        ("0", "08:58", "user:7", "claims it", "good"),
        ("0", "08:59", "user:7", "skips it: queue busy", "late"),
        ("0", "09:00", "", "skips it: unknown task", "area"),
        ("0", "09:30", "", "skips it: not due", "area"),
        ("5", "08:30", "", "claims it last", "good"),
    ]
    for number, (priority, due, queue, action, kind) in enumerate(rows):
        y = top + 12 + number * 44
        drawing.box(16, y, 448, 38, kind=kind)
        for x, text in [(36, priority), (82, due), (150, queue)]:
            drawing.text(x, y + 24.5, text)
        drawing.text(240, y + 24.5, action, bold=kind == "good")


def locks_and_crash_recovery() -> Drawing:
    """Draw what a pool without heartbeats and other pools do, with the default lease."""
    drawing = Drawing(
        "Locks and crash recovery",
        "Without a heartbeat, a pool claims no more jobs after 15 seconds and cancels its tasks "
        "after 25. After 30 it counts as dead. Within 10 more, another pool unlocks its jobs.",
        566,
    )
    drawing.text(96, 34, "pool A", bold=True)
    drawing.text(304, 34, "other pools", bold=True)
    drawing.line((76, 48), (76, 546))
    for y, when, own, others in [
        (50, "0 s", ("busy", "last heartbeat", "arrives"), None),
        (132, "15 s", ("late", "claims no", "more jobs"), None),
        (214, "25 s", ("late", "cancels its", "running tasks"), None),
        (296, "30 s", None, ("plain", "pool A is dead")),
        (378, "≤ 40 s", None, ("good", "another pool", "unlocks the jobs")),
        (460, "later", ("bad", "gets a new id", "old id is rejected"), None),
    ]:
        drawing.text(66, y + 36, when, anchor="end")
        drawing.line((70, y + 30), (82, y + 30))
        if own:
            drawing.box(96, y, 184, 62, *own[1:], kind=own[0])
        if others:
            drawing.box(304, y, 160, 62, *others[1:], kind=others[0])
    drawing.box(304, 460, 160, 62, "jobs run again", kind="good")
    drawing.arrow((384, 440), (384, 458))
    drawing.arrow((384, 358), (384, 376))
    drawing.arrow((188, 112), (188, 130))
    drawing.arrow((188, 194), (188, 212))
    drawing.arrow((188, 276), (188, 458), dashed=True)
    drawing.label(196, 360, "heartbeats", "resume", anchor="start")
    return drawing


def time_and_clocks() -> Drawing:
    """Draw three programs with different clocks, and the database's clock, which they use."""
    drawing = Drawing(
        "Time and clocks",
        "Programs with different clocks send delays, and ask which jobs are due and which minute "
        "it is. The database's clock answers. For a cron item, one of two workers adds the job.",
        588,
    )
    drawing.box(316, 20, 148, 324, kind="area")
    drawing.text(390, 150, "the database", anchor="middle", bold=True)
    drawing.text(390, 176, "09:00:00", anchor="middle", bold=True)
    drawing.text(390, 202, "all use", anchor="middle")
    drawing.text(390, 222, "this clock", anchor="middle")
    for y, program, clock, request, answer in [
        (20, "web server", "clock: 08:57", "in 10 min", "run_at 09:10"),
        (138, "worker A", "clock: 09:04", "due jobs?", "run_at ≤ 09:00"),
        (256, "worker B", "clock: 09:00", "which minute?", "09:00"),
    ]:
        drawing.box(16, y, 132, 88, program, clock, kind="plain")
        drawing.text(232, y + 28, request, anchor="middle")
        drawing.arrow((150, y + 38), (314, y + 38))
        drawing.text(232, y + 80, answer, anchor="middle", pale=True)
        drawing.arrow((314, y + 60), (150, y + 60), dashed=True)
    drawing.line((16, 366), (464, 366))
    drawing.text(24, 394, "rollup, due every hour", bold=True)
    drawing.box(16, 410, 132, 62, "worker A", "adds 09:00", kind="good")
    drawing.box(16, 504, 132, 62, "worker B", "adds no job", kind="area")
    drawing.box(256, 446, 208, 84, "rollup", "last_execution", "08:00 → 09:00", kind="busy")
    drawing.arrow((150, 441), (210, 441), (210, 474), (254, 474))
    drawing.label(180, 432, "first")
    drawing.arrow((150, 535), (210, 535), (210, 504), (254, 504), dashed=True)
    drawing.label(184, 556, "second")
    return drawing


def prefetching() -> Drawing:
    """Draw the path of jobs from the table through a worker's process and back."""
    drawing = Drawing(
        "Prefetching",
        "One fetch brings jobs into a worker's process, where they wait for at most about 0.1 s. "
        "Slots run them. The worker collects their outcomes and writes them together.",
        548,
    )
    drawing.box(16, 20, 124, 508, kind="area")
    drawing.text(78, 262, "table", anchor="middle", bold=True)
    drawing.text(78, 286, "of jobs", anchor="middle", bold=True)
    drawing.box(234, 20, 230, 508, kind="area")
    drawing.text(349, 48, "worker process", anchor="middle", bold=True)
    drawing.box(254, 66, 190, 84, "local queue", "about 0.1 s", "of work", kind="late")
    for number in range(3):
        drawing.box(254 + number * 66, 232, 58, 58, "slot", kind="busy")
    drawing.text(349, 316, "concurrency: 3", anchor="middle", pale=True)
    drawing.box(254, 386, 190, 84, "outcomes", "collected while a", "write runs", kind="good")
    for number in range(3):
        x = 283 + number * 66
        drawing.arrow((x, 150), (x, 230))
        drawing.arrow((x, 326), (x, 384))
    drawing.label(316, 196, "start")
    drawing.label(316, 360, "end")
    drawing.text(187, 70, "fetch", anchor="middle")
    drawing.arrow((142, 84), (252, 84))
    drawing.text(187, 152, "release,", anchor="middle")
    drawing.text(187, 172, "if late", anchor="middle")
    drawing.arrow((252, 130), (142, 130), dashed=True)
    drawing.text(187, 392, "one write", anchor="middle")
    drawing.text(187, 412, "per batch", anchor="middle")
    drawing.arrow((252, 426), (142, 426))
    return drawing


def sharing_with_node_and_rust() -> Drawing:
    """Draw the objects that Python, Node and Rust workers use."""
    drawing = Drawing(
        "Sharing with Node and Rust",
        "Python, Node and Rust share the schema graphile_worker: its tables and functions. "
        "Only Python has four indexes in it and the schema graphile_worker_ext.",
        636,
    )
    for x, name in [(16, "Python"), (172, "Node"), (328, "Rust")]:
        drawing.box(x, 20, 136, 62, name, "adds and runs", kind="busy")
        drawing.arrow((x + 88, 82), (x + 88, 132), both=True)
        drawing.label(x + 96, 113, "SQL", anchor="start")
    drawing.box(52, 134, 412, 306, kind="area")
    drawing.text(258, 162, "graphile_worker", anchor="middle", bold=True)
    drawing.box(
        70, 176, 376, 62, "tables and functions", "jobs, queues, tasks, crontabs", kind="good"
    )
    drawing.box(70, 250, 376, 40, "migrations: level 20", kind="good")
    drawing.box(70, 302, 376, 62, "_private_workers", "if Rust workers created it", kind="plain")
    drawing.box(70, 376, 376, 50, "4 indexes gwpy_…, only for Python", kind="late")
    drawing.box(52, 466, 412, 150, kind="area")
    drawing.text(258, 494, "graphile_worker_ext, only for Python", anchor="middle", bold=True)
    drawing.box(70, 508, 376, 40, "pools and their heartbeats", kind="late")
    drawing.box(70, 560, 376, 40, "recoveries and its own migrations", kind="late")
    drawing.arrow((32, 82), (32, 541), (50, 541))
    return drawing


def architecture() -> Drawing:
    """Draw the five layers, with PostgreSQL below."""
    drawing = Drawing(
        "Architecture: five layers",
        "Edges, assembly, engine, database and words: imports point down. The database layer "
        "sends queries to PostgreSQL, which holds every job and wakes the workers.",
        596,
    )
    layers = [
        ("edges", "_cli · testing · contrib · _bench", "plain"),
        ("assembly", "app · runner · _assembly · _discovery", "plain"),
        ("engine", "_worker · _lease · _cron · ops", "busy"),
        ("database", "client · sync · _db · _sql", "late"),
        ("words", "tasks · options · jobs · events · errors", "area"),
    ]
    for number, (name, parts, kind) in enumerate(layers):
        top = 20 + number * 88
        drawing.box(16, top, 368, 62, name, parts, kind=kind)
        if number < len(layers) - 1:
            drawing.arrow((200, top + 62), (200, top + 86))
    drawing.text(398, 56, "imports", pale=True)
    drawing.text(398, 76, "point", pale=True)
    drawing.text(398, 96, "down", pale=True)
    drawing.box(16, 504, 448, 72, "PostgreSQL", "jobs, locks, LISTEN/NOTIFY", kind="good")
    drawing.arrow((384, 315), (432, 315), (432, 502), both=True)
    drawing.text(392, 340, "SQL", pale=True)
    return drawing


# By file name, which is the name of the page.
PICTURES: Mapping[str, Callable[[], Drawing]] = {
    "job-lifecycle": job_lifecycle,
    "how-jobs-are-fetched": how_jobs_are_fetched,
    "locks-and-crash-recovery": locks_and_crash_recovery,
    "time-and-clocks": time_and_clocks,
    "prefetching": prefetching,
    "sharing-with-node-and-rust": sharing_with_node_and_rust,
    "architecture": architecture,
}
