"""Log lines: where they go, what they carry, and what a worker says about its work."""

import logging
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, NamedTuple

import pytest

from graphile_worker.events import (
    Event,
    ForcefulShutdown,
    GetJobErrored,
    GracefulShutdown,
    HeartbeatFailed,
    JobErrored,
    JobFailed,
    JobInterrupted,
    JobLockLost,
    JobRecovered,
    JobStarted,
    JobSucceeded,
    ListenFailed,
    ListenStarted,
    PoolFatalError,
    PoolFenced,
    PoolForcefulShutdown,
    PoolGracefulShutdown,
    PoolSwept,
    ResetLockedFailed,
    RunnerStarted,
    RunnerStopped,
    SweepFailed,
)
from graphile_worker.hooks import Hooks
from graphile_worker.logs import Logger, job_logger, logger_of
from graphile_worker.reporting import log_events
from tests.support.jobs import make_job

OURS = "graphile_worker"
JOB = make_job(id=7, task_identifier="resize", attempts=2, max_attempts=5)
WHERE: dict[str, Any] = {"pool_id": "p1", "worker_id": "w1", "job": JOB}
TOOK = timedelta(milliseconds=12.345)


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
def test_a_wider_scope_says_more_and_leaves_the_first_as_it_was(lines):
    logger = Logger(lines, {"label": "job", "job_id": 7})

    logger.scope(step="resize", job_id=8).info("inner")
    logger.info("outer")

    assert lines[0].scope == {"label": "job", "job_id": 8, "step": "resize"}
    assert lines[1].scope == {"label": "job", "job_id": 7}


@pytest.mark.feature("F136")
def test_the_logger_of_a_job_carries_the_four_keys(logger, lines):
    job_logger(logger, "w1", "resize", 7).info("hello")

    assert lines[0].scope == {
        "label": "job",
        "worker_id": "w1",
        "task_identifier": "resize",
        "job_id": 7,
    }


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
def test_arguments_that_do_not_fit_are_no_reason_to_fail(logger, lines, arguments):
    # As with the standard library, whose loggers never raise for what they are told.
    logger.info(*arguments)

    [line] = lines
    assert str(arguments[1]) in line.message


@pytest.mark.feature("F138")
@pytest.mark.parametrize("name", ["message", "args", "level", "name"])
def test_what_is_said_beside_the_message_may_have_any_name(logger, lines, name):
    logger.info("hello", **{name: 1})

    assert lines[0].meta == {name: 1}


# The standard library's logging


@pytest.mark.feature("F131")
@pytest.mark.parametrize("level", ["error", "warning", "info", "debug"])
def test_by_default_lines_go_to_the_logger_of_the_library(log, level):
    getattr(logger_of(None), level)("hello %s", "there")

    [record] = log.records
    assert (record.name, record.levelname) == (OURS, level.upper())
    assert record.getMessage() == "hello there"


@pytest.mark.feature("F134")
def test_a_logger_of_the_program_takes_them_instead(caplog):
    caplog.set_level(logging.INFO, "shop.jobs")

    logger_of(logging.getLogger("shop.jobs")).info("hello")

    assert [record.name for record in caplog.records] == ["shop.jobs"]


@pytest.mark.feature("F134")
def test_a_logger_of_ours_is_used_as_it_is(logger):
    assert logger_of(logger) is logger


@pytest.mark.feature("F136")
def test_scope_and_meta_are_extras_of_each_record(log):
    job_logger(logger_of(None), "w1", "resize", 7).info("hello", bytes=10)

    [record] = log.records
    found = vars(record)
    assert (found["label"], found["worker_id"]) == ("job", "w1")
    assert (found["task_identifier"], found["job_id"]) == ("resize", 7)
    assert found["bytes"] == 10


def test_a_name_that_records_have_for_themselves_does_no_harm(log):
    logger_of(None).info("hello", name="ada", args=1, asctime="now")

    [record] = log.records
    assert (record.name, record.getMessage()) == (OURS, "hello")


def test_a_line_that_nobody_wants_is_not_made(log):
    log.set_level(logging.INFO, OURS)

    logger_of(None).debug("hello")

    assert log.records == []


def test_a_record_of_an_exception_holds_its_traceback(log):
    try:
        raise LookupError("boom")
    except LookupError:
        logger_of(None).exception("failed")

    [record] = log.records
    assert record.exc_info is not None
    assert record.exc_info[0] is LookupError


@pytest.mark.feature("F132")
def test_the_library_sets_nothing_up_for_the_program(log):
    root, ours = logging.getLogger(), logging.getLogger(OURS)
    before = (root.handlers[:], root.level, ours.handlers[:], ours.propagate)

    logger_of(None).info("hello")

    assert (root.handlers, root.level, ours.handlers, ours.propagate) == before


# What a worker says


@pytest.fixture
def said(monkeypatch, lines, logger):
    """What is said about events."""
    for name in ("NO_LOG_SUCCESS", "GRAPHILE_LOGGER_DEBUG", "GRAPHILE_WORKER_DEBUG"):
        monkeypatch.delenv(name, raising=False)

    def say(*events: Event) -> list[tuple[str, str]]:
        hooks = Hooks()
        with log_events(hooks, logger, {"p1"}):
            for event in events:
                hooks.emit(event)
        said: list[tuple[str, str]] = lines.said
        return said

    return say


@pytest.mark.feature("F140")
def test_a_worker_that_is_connected_names_its_tasks(said, lines):
    said(RunnerStarted(pool_id="p1", tasks=("resize", "users/mail")))

    message = "worker connected and looking for jobs (task names: 'resize', 'users/mail')"
    assert lines == [({}, "info", message, {})]


@pytest.mark.feature("F131", "F136", "F141")
def test_a_finished_job_is_one_line_with_its_id_task_and_milliseconds(said, lines):
    said(JobSucceeded(**WHERE, duration=TOOK))

    [line] = lines
    assert line.level == "info"
    assert line.message == "completed job 7 (resize) with success (12.35 ms)"
    assert line.meta == {"duration_ms": pytest.approx(12.345)}
    assert line.scope == {
        "label": "job",
        "worker_id": "w1",
        "task_identifier": "resize",
        "job_id": 7,
    }


def test_a_failed_attempt_is_an_error_with_its_traceback(said, lines):
    error = LookupError("no such\n picture")

    said(JobErrored(**WHERE, error=error, duration=TOOK))

    [line] = lines
    assert line.level == "error"
    assert line.message == (
        "failed job 7 (resize, attempt 2 of 5) with error LookupError: no such picture (12.35 ms)"
    )
    assert line.meta == {"exc_info": error}


def test_an_error_that_cannot_be_shown_is_named_by_its_kind(said):
    class Unspeakable(Exception):
        def __str__(self) -> str:
            raise ValueError("no text")

    [(_, message)] = said(JobErrored(**WHERE, error=Unspeakable(), duration=TOOK))

    assert "with error Unspeakable" in message


def test_an_error_that_says_a_lot_is_cut_short(said):
    [(_, message)] = said(JobErrored(**WHERE, error=ValueError("x" * 1_000_000), duration=TOOK))

    assert len(message) < 1000
    assert message.endswith("(12.35 ms)")


@pytest.mark.parametrize(
    ("event", "line"),
    [
        (
            JobFailed(**WHERE, error=ValueError(), duration=TOOK),
            ("error", "gave up on job 7 (resize): it will not run again"),
        ),
        (
            JobLockLost(**WHERE),
            ("warning", "job 7 ended, but somebody else holds it now: nothing was written"),
        ),
        (JobInterrupted(**WHERE), ("warning", "handed job 7 back, its attempt not counted")),
        (ListenStarted(pool_id="p1"), ("debug", "listening for new jobs")),
        (
            ListenFailed(pool_id="p1", error=OSError("gone")),
            ("warning", "cannot listen for new jobs, will try again: OSError: gone"),
        ),
        (
            ResetLockedFailed(pool_id="p1", error=OSError("gone"), delay=None),
            ("warning", "could not look for stale locks: OSError: gone"),
        ),
        (
            HeartbeatFailed(pool_id="p1", error=OSError("gone"), failures=1),
            ("warning", "cannot say that this worker lives, will try again: OSError: gone"),
        ),
        (
            PoolFenced(pool_id="p1", silence=timedelta(seconds=25.04), job_ids=(7, 8)),
            (
                "error",
                "no heartbeat reached the database for 25.0 s: gave up jobs 7, 8, others may take "
                "them",
            ),
        ),
        (
            PoolFenced(pool_id="p1", silence=timedelta(seconds=25), job_ids=()),
            (
                "error",
                "no heartbeat reached the database for 25.0 s: gave up jobs (none), others may "
                "take them",
            ),
        ),
        (
            PoolSwept(pool_id="p1", old_pool_id="p0", job_ids=(7, 8)),
            (
                "error",
                "others took this worker for dead and its jobs 7, 8 from it; it goes on as p1",
            ),
        ),
        (
            SweepFailed(pool_id="p1", error=OSError("gone")),
            ("warning", "could not look for dead workers: OSError: gone"),
        ),
        (
            PoolFatalError(pool_id="p1", error=OSError("gone"), action="completeJob"),
            ("error", "completeJob could not be written, will try again: OSError: gone"),
        ),
        (PoolGracefulShutdown(pool_id="p1", message="bye"), ("info", "stopping: bye")),
        (PoolForcefulShutdown(pool_id="p1", message="bye"), ("warning", "stopping at once: bye")),
        (GracefulShutdown(signal="SIGTERM"), ("debug", "heard SIGTERM")),
        (ForcefulShutdown(signal="SIGINT"), ("debug", "heard SIGINT")),
        (RunnerStopped(pool_id="p1"), ("debug", "stopped")),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_a_person_would_want_to_know_is_one_line(said, event, line):
    assert said(event) == [line]


def test_an_error_of_one_fetch_is_said_once_however_many_waited_for_it(said, lines):
    error, another = OSError("gone"), OSError("gone again")
    told = [(error, "w1"), (error, "w2"), (another, "w1"), (another, "w2")]

    said(*(GetJobErrored(pool_id="p1", worker_id=worker, error=each) for each, worker in told))

    assert lines.said == [
        ("warning", "could not ask for a job: OSError: gone"),
        ("warning", "could not ask for a job: OSError: gone again"),
    ]
    assert lines[0].scope == {"label": "worker", "worker_id": "w1"}


@pytest.mark.feature("F188")
@pytest.mark.parametrize(
    ("was_started", "recoveries", "is_parked", "line"),
    [
        (True, 2, False, ("warning", "recovered job 7 (resize), which dead pool p0 had started")),
        (
            False,
            0,
            False,
            ("warning", "recovered job 7 (resize), which dead pool p0 had fetched, not started"),
        ),
        (True, 3, True, ("error", "parked job 7 (resize), which dead pool p0 had started")),
    ],
)
def test_a_job_of_a_dead_worker_is_one_line_with_what_became_of_it(
    said, was_started, recoveries, is_parked, line
):
    recovered = JobRecovered(
        pool_id="p1",
        job=JOB,
        dead_pool_id="p0",
        was_started=was_started,
        recoveries=recoveries,
        is_parked=is_parked,
    )

    level, message = line
    assert said(recovered) == [(level, f"{message} (recoveries while it ran: {recoveries})")]


def test_a_heart_that_goes_on_failing_is_mentioned_once_until_it_beats_again(said):
    counts = [1, 2, 3, 1, 2]

    lines = said(
        *(HeartbeatFailed(pool_id="p1", error=OSError(str(n)), failures=n) for n in counts)
    )

    assert (
        lines == [("warning", "cannot say that this worker lives, will try again: OSError: 1")] * 2
    )


def test_success_is_not_said_where_nobody_wants_it(said, monkeypatch):
    monkeypatch.setenv("NO_LOG_SUCCESS", "1")

    started = RunnerStarted(pool_id="p1", tasks=("resize",))
    lines = said(started, JobSucceeded(**WHERE, duration=TOOK), JobInterrupted(**WHERE))

    assert lines == [("warning", "handed job 7 back, its attempt not counted")]


@pytest.mark.feature("F133")
@pytest.mark.parametrize("name", ["GRAPHILE_LOGGER_DEBUG", "GRAPHILE_WORKER_DEBUG"])
def test_the_start_of_each_job_is_for_those_who_look_for_a_mistake(said, monkeypatch, name):
    assert said(JobStarted(**WHERE)) == []

    monkeypatch.setenv(name, "1")

    assert said(JobStarted(**WHERE)) == [("debug", "began job 7 (resize)")]


def test_pools_that_share_their_hooks_each_speak_for_themselves(said):
    elsewhere: dict[str, Any] = {**WHERE, "pool_id": "p2"}

    assert said(JobInterrupted(**elsewhere)) == []


def test_a_pool_speaks_for_itself_under_the_ids_that_it_gets_later(logger, lines):
    hooks, ids = Hooks(), {"p1"}

    with log_events(hooks, logger, ids):
        hooks.emit(PoolSwept(pool_id="p2", old_pool_id="p1", job_ids=()))
        assert lines == []

        ids.add("p2")
        hooks.emit(PoolSwept(pool_id="p2", old_pool_id="p1", job_ids=()))
    assert len(lines) == 1


def test_nothing_is_said_after_the_end(logger, lines):
    hooks = Hooks()

    with log_events(hooks, logger, {"p1"}):
        assert hooks.hears(JobSucceeded)

    assert not hooks.hears(JobSucceeded)
    hooks.emit(RunnerStopped(pool_id="p1"))
    assert lines == []
