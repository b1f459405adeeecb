"""Log lines: where they go, what they carry, and what a worker says about its work."""

import logging
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, NamedTuple

import pytest

from graphile_worker._support.logs import Logger, resolve_logger
from graphile_worker._worker import reporting
from graphile_worker._worker.reporting import build_job_logger, log_events
from graphile_worker.errors import LeaseExpiredError
from graphile_worker.events import (
    CronFailed,
    Event,
    ForcefulShutdown,
    GetJobErrored,
    GetJobRecovered,
    GracefulShutdown,
    HeartbeatFailed,
    HeartbeatRecovered,
    JobErrored,
    JobFailed,
    JobInterrupted,
    JobLockLost,
    JobOverran,
    JobRecovered,
    JobStarted,
    JobSucceeded,
    JobSucceededLate,
    LeaseExpired,
    LeaseLost,
    ListenFailed,
    ListenStarted,
    PoolFatalError,
    PoolForcefulShutdown,
    PoolGracefulShutdown,
    RecoveryFailed,
    ResetLockedFailed,
    RunnerStarted,
    RunnerStopped,
    TaskPaused,
    TaskResumed,
    WorkerRestarted,
)
from graphile_worker.hooks import Hooks
from tests.support.hostile import TEXT
from tests.support.jobs import make_job

OURS = "graphile_worker"
JOB = make_job(
    id=7,
    task_identifier="resize",
    queue_name="images",
    attempts=2,
    max_attempts=5,
    run_at="10.000000",
    locked_at="10.250000",
)
WHERE: dict[str, Any] = {"pool_id": "p1", "worker_id": "w1", "job": JOB}
TOOK = timedelta(milliseconds=12.345)
TIMES = {"duration_ms": 12.35, "wait_ms": 250.0}
SCOPE = {
    "label": "job",
    "pool_id": "p1",
    "worker_id": "w1",
    "task_identifier": "resize",
    "job_id": 7,
    "queue_name": "images",
    "attempt": 2,
    "max_attempts": 5,
}


class Line(NamedTuple):
    scope: dict[str, Any]
    level: str
    message: str
    meta: dict[str, Any]


class Lines(list[Line]):
    """A log factory that keeps what is said."""

    def __call__(self, scope: Mapping[str, Any]) -> Any:
        def log(level: str, message: str, meta: Mapping[str, Any]) -> str:
            self.append(Line(dict(scope), level, message, dict(meta)))
            return "what is returned does not matter"

        return log

    @property
    def said(self) -> list[tuple[str, str]]:
        return [(line.level, line.message) for line in self]


@pytest.fixture
def lines() -> Lines:
    return Lines()


@pytest.fixture
def logger(lines) -> Logger:
    return Logger(lines)


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    """What the standard library's logger of ours was told."""
    caplog.set_level(logging.DEBUG, OURS)
    return caplog


# A log factory


@pytest.mark.feature("F134", "F135", "F137")
def test_a_factory_is_given_the_scope_and_returns_a_function_of_level_message_and_meta(lines):
    Logger(lines, {"label": "worker"}).info("took %s of %s", 1, 2, count=3)

    assert lines == [({"label": "worker"}, "info", "took 1 of 2", {"count": 3})]


@pytest.mark.feature("F137", "F138")
@pytest.mark.parametrize("level", ["error", "warning", "info", "debug"])
def test_the_level_is_the_name_of_the_method(logger, lines, level):
    answer = getattr(logger, level)("hello")

    assert lines == [({}, level, "hello", {})]
    assert answer is None


@pytest.mark.feature("F138")
def test_warn_is_warning(logger, lines):
    logger.warn("careful", why="hot")  # noqa: G010

    assert lines == [({}, "warning", "careful", {"why": "hot"})]


@pytest.mark.feature("F139")
def test_a_wider_scope_adds_values_and_leaves_the_first_unchanged(lines):
    logger = Logger(lines, {"label": "job", "job_id": 7})

    logger.scope(step="resize", job_id=8).info("inner")
    logger.info("outer")

    assert lines[0].scope == {"label": "job", "job_id": 8, "step": "resize"}
    assert lines[1].scope == {"label": "job", "job_id": 7}


@pytest.mark.feature("F136")
def test_the_logger_of_a_job_carries_its_ids_queue_and_attempt(logger, lines):
    build_job_logger(logger, "p1", JOB, worker_id="w1").info("hello")

    assert lines[0].scope == SCOPE


def test_an_error_may_come_with_what_is_being_handled(logger, lines):
    try:
        raise LookupError("boom")
    except LookupError:
        logger.exception("failed", step=2)

    assert lines == [({}, "error", "failed", {"exc_info": True, "step": 2})]


def test_a_message_without_arguments_may_hold_percent_signs(logger, lines):
    logger.info("100% %s %d")

    assert lines[0].message == "100% %s %d"


@pytest.mark.parametrize("arguments", [("%d pictures", "many"), ("%s of %s", 1), ("100%", 1)])
def test_arguments_that_do_not_fit_the_message_raise_no_error(logger, lines, arguments):
    # As with the standard library, whose loggers never raise for what they are told.
    logger.info(*arguments)

    [line] = lines
    assert str(arguments[1]) in line.message


@pytest.mark.feature("F138")
@pytest.mark.parametrize("name", ["message", "args", "level", "name"])
def test_meta_may_have_any_name(logger, lines, name):
    logger.info("hello", **{name: 1})

    assert lines[0].meta == {name: 1}


# The standard library's logging


@pytest.mark.feature("F131")
@pytest.mark.parametrize("level", ["error", "warning", "info", "debug"])
def test_by_default_lines_go_to_the_logger_of_the_library(log, level):
    getattr(resolve_logger(None), level)("hello %s", "there")

    [record] = log.records
    assert (record.name, record.levelname) == (OURS, level.upper())
    assert record.getMessage() == "hello there"


@pytest.mark.feature("F134")
def test_a_logger_of_the_program_takes_them_instead(caplog):
    caplog.set_level(logging.INFO, "shop.jobs")

    resolve_logger(logging.getLogger("shop.jobs")).info("hello")

    assert [record.name for record in caplog.records] == ["shop.jobs"]


@pytest.mark.feature("F134")
def test_a_logger_of_this_package_is_used_unchanged(logger):
    assert resolve_logger(logger) is logger


@pytest.mark.feature("F136")
def test_scope_and_meta_are_extras_of_each_record(log):
    build_job_logger(resolve_logger(None), "p1", JOB, worker_id="w1").info("hello", bytes=10)

    [record] = log.records
    assert {**SCOPE, "bytes": 10}.items() <= vars(record).items()


def test_a_record_keeps_its_template_and_its_arguments_apart(log):
    resolve_logger(None).info("took %s of %s", 1, 2)

    [record] = log.records
    assert (record.msg, record.args) == ("took %s of %s", (1, 2))


def test_a_name_that_records_have_for_themselves_does_no_harm(log):
    resolve_logger(None).info("hello", name="ada", args=1, asctime="now")

    [record] = log.records
    assert (record.name, record.getMessage()) == (OURS, "hello")


def test_nothing_is_formatted_on_a_level_that_is_disabled(log, monkeypatch):
    log.set_level(logging.CRITICAL, OURS)
    made: list[object] = []

    class Argument:
        def __str__(self) -> str:
            made.append(self)
            return ""

    for name in ("format_error_line", "build_job_logger"):
        monkeypatch.setattr(reporting, name, lambda *given, **more: made.append(given))
    logger, hooks = resolve_logger(None), Hooks()

    for level in ("error", "warning", "info", "debug"):
        getattr(logger, level)("%s", Argument())
    with log_events(hooks, logger, {"p1"}, is_outage=is_outage):
        hooks.emit(JobSucceeded(**WHERE, duration=TOOK))
        hooks.emit(JobErrored(**WHERE, error=ValueError(), duration=TOOK))

    assert (log.records, made) == ([], [])


def test_a_record_of_an_exception_holds_its_traceback(log):
    try:
        raise LookupError("boom")
    except LookupError:
        resolve_logger(None).exception("failed")

    [record] = log.records
    assert record.exc_info is not None
    assert record.exc_info[0] is LookupError


@pytest.mark.feature("F132")
def test_the_library_sets_nothing_up_for_the_program(log):
    root, ours = logging.getLogger(), logging.getLogger(OURS)
    before = (root.handlers[:], root.level, ours.handlers[:], ours.propagate)

    resolve_logger(None).info("hello")

    assert (root.handlers, root.level, ours.handlers, ours.propagate) == before


# What a worker says


def is_outage(error: BaseException) -> bool:
    return isinstance(error, OSError)


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def said(monkeypatch, lines, logger, clock):
    """What is said about events."""
    for name in ("NO_LOG_SUCCESS", "GRAPHILE_LOGGER_DEBUG", "GRAPHILE_WORKER_DEBUG"):
        monkeypatch.delenv(name, raising=False)

    def say(*events: Event) -> list[tuple[str, str]]:
        hooks = Hooks()
        with log_events(hooks, logger, {"p1"}, is_outage=is_outage, clock=clock):
            for event in events:
                hooks.emit(event)
        said: list[tuple[str, str]] = lines.said
        return said

    return say


@pytest.mark.feature("F140")
def test_a_worker_that_is_connected_names_its_tasks(said, lines):
    said(RunnerStarted(pool_id="p1", tasks=("resize", "users/mail")))

    message = "worker connected and looking for jobs (task names: 'resize', 'users/mail')"
    assert lines == [({"pool_id": "p1"}, "info", message, {})]


@pytest.mark.feature("F131", "F136", "F141")
def test_a_finished_job_is_one_line_with_its_id_task_and_milliseconds(said, lines):
    said(JobSucceeded(**WHERE, duration=TOOK))

    [line] = lines
    assert line.level == "info"
    assert line.message == "completed job 7 (resize) with success (12.35 ms)"
    assert line.meta == TIMES
    assert line.scope == SCOPE


def test_a_failed_attempt_that_is_retried_is_a_warning_with_its_traceback(said, lines):
    error = LookupError("no such\n picture")

    said(JobErrored(**WHERE, error=error, duration=TOOK))

    [line] = lines
    assert line.level == "warning"
    assert line.message == (
        "failed job 7 (resize, attempt 2 of 5) with error LookupError: no such picture (12.35 ms)"
    )
    assert line.meta == {"exc_info": error, **TIMES}
    assert line.scope == SCOPE


def test_a_permanent_failure_is_one_error_with_its_traceback(said, lines):
    error = LookupError("no such picture")

    said(
        JobErrored(**WHERE, error=error, duration=TOOK, will_retry=False),
        JobFailed(**WHERE, error=error, duration=TOOK),
    )

    [line] = lines
    assert line.level == "error"
    assert line.message == (
        "permanently failed job 7 (resize, attempt 2 of 5) with error LookupError: no such picture "
        "(12.35 ms)"
    )
    assert line.meta == {"exc_info": error, **TIMES}
    assert line.scope == SCOPE


def test_an_error_that_cannot_be_shown_is_named_by_its_kind(said):
    class Unspeakable(Exception):
        def __str__(self) -> str:
            raise ValueError("no text")

    [(_, message)] = said(JobErrored(**WHERE, error=Unspeakable(), duration=TOOK))

    assert "with error Unspeakable" in message


def test_a_long_error_is_truncated(said):
    [(_, message)] = said(JobErrored(**WHERE, error=ValueError("x" * 1_000_000), duration=TOOK))

    assert len(message) < 1000
    assert message.endswith("(12.35 ms)")


def test_an_error_is_logged_in_one_printable_line(said):
    error = LookupError(TEXT)
    job = make_job(id=7, task_identifier=TEXT)
    pool: dict[str, Any] = {"pool_id": "p1"}
    recovery: dict[str, Any] = {"was_started": True, "crashes": 1, "is_quarantined": True}

    lines = said(
        JobErrored(**WHERE, error=error, duration=TOOK),
        JobSucceededLate(**WHERE, duration=TOOK, late_error=error),
        GetJobErrored(**pool, worker_id="w1", error=error),
        ListenFailed(**pool, error=error),
        ResetLockedFailed(**pool, error=error, delay=None),
        HeartbeatFailed(**pool, error=error, failures=1),
        RecoveryFailed(**pool, error=error),
        PoolFatalError(**pool, error=error, action="failJob"),
        CronFailed(error=error),
        CronFailed(error=error, identifier=TEXT),
        PoolGracefulShutdown(**pool, message=TEXT),
        PoolForcefulShutdown(**pool, message=TEXT),
        JobRecovered(**pool, job=job, dead_pool_id=TEXT, **recovery),
    )

    assert len(lines) == 14
    assert [message for _, message in lines if not message.isprintable()] == []


@pytest.mark.parametrize(
    ("event", "line"),
    [
        (
            JobLockLost(**WHERE),
            ("warning", "lost the lock of job 7 while it ran, result discarded"),
        ),
        (JobInterrupted(**WHERE), ("warning", "released job 7 (attempt not counted)")),
        (ListenStarted(pool_id="p1"), ("debug", "listening for new jobs")),
        (
            ListenFailed(pool_id="p1", error=LookupError("gone")),
            ("warning", "cannot listen for new jobs, retrying: LookupError: gone"),
        ),
        (
            ResetLockedFailed(pool_id="p1", error=LookupError("gone"), delay=None),
            ("warning", "check for stale locks failed, retrying: LookupError: gone"),
        ),
        (
            HeartbeatFailed(pool_id="p1", error=LookupError("gone"), failures=1),
            ("warning", "heartbeat failed, retrying: LookupError: gone"),
        ),
        (
            LeaseExpired(
                pool_id="p1", time_since_heartbeat=timedelta(seconds=25.04), job_ids=(7, 8)
            ),
            (
                "error",
                "lease expired after 25.0 s without a heartbeat, stopped jobs 7, 8: other workers "
                "may claim them",
            ),
        ),
        (
            LeaseExpired(pool_id="p1", time_since_heartbeat=timedelta(seconds=25), job_ids=()),
            (
                "error",
                "lease expired after 25.0 s without a heartbeat, stopped jobs (none): other "
                "workers may claim them",
            ),
        ),
        (
            LeaseLost(pool_id="p1", old_pool_id="p0", job_ids=(7, 8)),
            (
                "error",
                "lease lost, other workers recovered jobs 7, 8 of this worker; continuing as p1",
            ),
        ),
        (
            RecoveryFailed(pool_id="p1", error=LookupError("gone")),
            ("warning", "recovery failed, retrying: LookupError: gone"),
        ),
        (
            JobOverran(**WHERE, timeout=timedelta(seconds=30)),
            (
                "warning",
                "job 7 (resize) exceeded its timeout of 0:00:30 and cannot be stopped; its slot "
                "and lock stay in use until the function returns",
            ),
        ),
        (
            TaskPaused(pool_id="p1", task_identifier="resize", count=3),
            (
                "error",
                "paused task 'resize' until one of 3 functions past their timeout returns; "
                'with run_in="process" a worker can stop them',
            ),
        ),
        (
            TaskResumed(pool_id="p1", task_identifier="resize"),
            ("info", "resumed task 'resize'"),
        ),
        (
            WorkerRestarted(pool_id="p1", worker_id="w1"),
            (
                "error",
                "worker was cancelled outside of a shutdown, restarting: a task or a listener may "
                "cancel asyncio tasks that it did not start",
            ),
        ),
        (
            PoolFatalError(pool_id="p1", error=OSError("gone"), action="completeJob"),
            ("error", "completeJob failed, retrying: OSError: gone"),
        ),
        (PoolGracefulShutdown(pool_id="p1", message="bye"), ("info", "stopping: bye")),
        (PoolForcefulShutdown(pool_id="p1", message="bye"), ("warning", "stopping at once: bye")),
        (GracefulShutdown(signal="SIGTERM"), ("debug", "received SIGTERM")),
        (ForcefulShutdown(signal="SIGINT"), ("debug", "received SIGINT")),
        (RunnerStopped(pool_id="p1"), ("debug", "stopped")),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_a_person_would_want_to_know_is_one_line(said, event, line):
    assert said(event) == [line]


def test_an_error_of_one_fetch_is_logged_once_for_all_waiting_workers(said, lines):
    error = LookupError("gone")

    said(*(GetJobErrored(pool_id="p1", worker_id=each, error=error) for each in ("w1", "w2")))

    assert lines.said == [("warning", "fetch failed, retrying: LookupError: gone")]
    assert lines[0].scope == {"label": "worker", "pool_id": "p1", "worker_id": "w1"}


def warnings(lines: Lines) -> list[str]:
    return [line.message for line in lines if line.level == "warning"]


def errors_in_all_places(error: Exception) -> list[Event]:
    return [
        GetJobErrored(pool_id="p1", worker_id="w1", error=error),
        GetJobErrored(pool_id="p1", worker_id="w2", error=error),
        ListenFailed(pool_id="p1", error=error),
        HeartbeatFailed(pool_id="p1", error=error, failures=1),
        RecoveryFailed(pool_id="p1", error=error),
        ResetLockedFailed(pool_id="p1", error=error, delay=None),
        CronFailed(error=error),
    ]


def test_an_outage_is_one_line_when_it_begins_one_a_minute_and_one_when_it_ends(
    logger, lines, clock
):
    hooks = Hooks()
    with log_events(hooks, logger, {"p1"}, is_outage=is_outage, clock=clock):
        for _ in range(130):
            for event in errors_in_all_places(ConnectionError("refused")):
                hooks.emit(event)
            clock.now += 1
        # It is over when every place works again.
        hooks.emit(ListenStarted(pool_id="p1"))
        hooks.emit(GetJobRecovered(pool_id="p1"))
        hooks.emit(HeartbeatFailed(pool_id="p1", error=TimeoutError(), failures=131))
        clock.now += 1
        hooks.emit(HeartbeatRecovered(pool_id="p1"))
        hooks.emit(HeartbeatRecovered(pool_id="p1"))

    assert warnings(lines) == [
        "database unreachable, retrying: ConnectionError: refused",
        "database unreachable for 60 s, retrying: ConnectionError: refused",
        "database unreachable for 120 s, retrying: ConnectionError: refused",
        "database reachable again after 131.0 s",
    ]
    assert {line.level for line in lines} == {"warning", "debug"}


def test_the_next_outage_is_logged_again(said, lines):
    failed = [GetJobErrored(pool_id="p1", worker_id="w1", error=TimeoutError()) for _ in range(2)]
    recovered = GetJobRecovered(pool_id="p1")

    said(failed[0], recovered, failed[1], recovered)

    assert (
        warnings(lines)
        == [
            "database unreachable, retrying: TimeoutError: no answer in time",
            "database reachable again after 0.0 s",
        ]
        * 2
    )


def test_an_expired_lease_is_part_of_an_outage_or_logged_on_its_own(said, lines):
    lapsed = LeaseExpiredError("no heartbeat for 20 s")
    fetch = GetJobErrored(pool_id="p1", worker_id="w1", error=lapsed)

    said(HeartbeatFailed(pool_id="p1", error=OSError("gone"), failures=1), fetch)
    assert warnings(lines) == ["database unreachable, retrying: OSError: gone"]

    lines.clear()
    said(fetch)
    assert warnings(lines) == [f"fetch failed, retrying: LeaseExpiredError: {lapsed}"]


def test_what_the_database_answers_again_and_again_is_one_line_a_minute(logger, lines, clock):
    hooks = Hooks()
    with log_events(hooks, logger, {"p1"}, is_outage=is_outage, clock=clock):
        for n in range(70):
            error = LookupError(f"refused {n}")
            hooks.emit(GetJobErrored(pool_id="p1", worker_id="w1", error=error))
            clock.now += 1

    assert warnings(lines) == [
        "fetch failed, retrying: LookupError: refused 0",
        "fetch failed, retrying: LookupError: refused 60",
    ]


def test_a_database_that_answers_with_an_error_is_reachable(said, lines):
    said(
        GetJobErrored(pool_id="p1", worker_id="w1", error=OSError("gone")),
        GetJobErrored(pool_id="p1", worker_id="w1", error=LookupError("no such table")),
    )

    assert warnings(lines) == [
        "database unreachable, retrying: OSError: gone",
        "database reachable again after 0.0 s",
        "fetch failed, retrying: LookupError: no such table",
    ]


@pytest.mark.feature("F188")
@pytest.mark.parametrize(
    ("was_started", "recoveries", "is_quarantined", "line"),
    [
        (True, 2, False, ("warning", "recovered job 7 (resize) of dead pool p0 (started")),
        (
            False,
            0,
            False,
            ("warning", "recovered job 7 (resize) of dead pool p0 (not started"),
        ),
        (True, 3, True, ("error", "quarantined job 7 (resize) of dead pool p0 (started")),
    ],
)
def test_a_job_of_a_dead_worker_is_one_line_with_what_became_of_it(
    said, was_started, recoveries, is_quarantined, line
):
    recovered = JobRecovered(
        pool_id="p1",
        job=JOB,
        dead_pool_id="p0",
        was_started=was_started,
        crashes=recoveries,
        is_quarantined=is_quarantined,
    )

    level, message = line
    assert said(recovered) == [(level, f"{message}, crashes: {recoveries})")]


def test_success_is_not_logged_with_no_log_success(said, monkeypatch):
    monkeypatch.setenv("NO_LOG_SUCCESS", "1")

    started = RunnerStarted(pool_id="p1", tasks=("resize",))
    lines = said(started, JobSucceeded(**WHERE, duration=TOOK), JobInterrupted(**WHERE))

    assert lines == [("warning", "released job 7 (attempt not counted)")]


@pytest.mark.feature("F133")
@pytest.mark.parametrize("name", ["GRAPHILE_LOGGER_DEBUG", "GRAPHILE_WORKER_DEBUG"])
def test_the_start_of_each_job_is_for_those_who_look_for_a_mistake(said, monkeypatch, name):
    assert said(JobStarted(**WHERE)) == []

    monkeypatch.setenv(name, "1")

    assert said(JobStarted(**WHERE)) == [("debug", "started job 7 (resize)")]


def test_pools_that_share_their_hooks_each_speak_for_themselves(said):
    elsewhere: dict[str, Any] = {**WHERE, "pool_id": "p2"}

    assert said(JobInterrupted(**elsewhere)) == []


def test_a_pool_speaks_for_itself_under_the_ids_that_it_gets_later(logger, lines):
    hooks, ids = Hooks(), {"p1"}

    with log_events(hooks, logger, ids, is_outage=is_outage):
        hooks.emit(LeaseLost(pool_id="p2", old_pool_id="p1", job_ids=()))
        assert lines == []

        ids.add("p2")
        hooks.emit(LeaseLost(pool_id="p2", old_pool_id="p1", job_ids=()))
    assert len(lines) == 1


def test_nothing_is_logged_after_the_end(logger, lines):
    hooks = Hooks()

    with log_events(hooks, logger, {"p1"}, is_outage=is_outage):
        assert hooks.has_listeners(JobSucceeded)

    assert not hooks.has_listeners(JobSucceeded)
    hooks.emit(RunnerStopped(pool_id="p1"))
    assert lines == []
