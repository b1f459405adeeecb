"""Completer: what is written when a job ends, under which pool id, and how it is retried."""

import asyncio
import time
from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from graphile_worker._lease.lease import Lease
from graphile_worker._sql.queries.claim import ClaimedJob
from graphile_worker._sql.queries.history import KeptRun
from graphile_worker._worker import completer as completer_module
from graphile_worker._worker.completer import (
    REJECTIONS_BEFORE_FAILURE,
    Completer,
    CompletionTimings,
)
from graphile_worker._worker.outcomes import (
    Completed,
    CompletedInTransaction,
    Failed,
    Interrupted,
    Outcome,
    Snoozed,
)
from graphile_worker.errors import OutcomeRefused
from graphile_worker.events import PoolEvent, PoolFatalError
from graphile_worker.hooks import Hooks
from graphile_worker.results import Retention
from tests.support.clocks import skip_delays
from tests.support.fake_database import FakeDatabase, FakeDatabaseError
from tests.support.job_sources import run_until_idle
from tests.support.jobs import make_job
from tests.support.recorder import wait_until

CLAIMED = ClaimedJob(make_job(id=7, attempts=3, locked_by="p1"), 5)
COMPLETED = Completed(CLAIMED)
FAILED = Failed(CLAIMED, LookupError("boom"))
SNOOZED = Snoozed(CLAIMED, timedelta(minutes=1))
INTERRUPTED = Interrupted(CLAIMED)
NOT_COMPLETED: list[Outcome] = [FAILED, SNOOZED, INTERRUPTED]
OUTCOMES: list[Outcome] = [COMPLETED, *NOT_COMPLETED]
# The statement that keeps an outcome, and the one that does not.
KEEPING_STATEMENTS = {
    Completed: ("complete_and_keep_jobs", "complete_claimed_jobs"),
    Failed: ("fail_and_keep_jobs", "fail_claimed_jobs"),
}
# Answers of the database: whether this pool still held the job.
OWNED, NOT_OWNED = {7}, set[int]()


class Scene:
    """The completer of a registered pool, and its events."""

    def __init__(self, *answers: Any, **options: Any) -> None:
        self.database = FakeDatabase(*answers)
        self.lease = Lease(timedelta(seconds=30), pool_id="p1")
        self.lease.renew(time.monotonic())
        self.events: list[PoolEvent] = []
        hooks = Hooks()
        hooks.on(PoolEvent)(self.events.append)
        database: Any = self.database
        self.completer = Completer(database, self.lease, hooks, **options)

    def accepts_heartbeats(self) -> None:
        """Let the database accept heartbeats while it rejects outcomes."""
        self.lease.renew(time.monotonic() + 60)

    async def complete(self, outcome: Outcome) -> bool:
        """Return whether the outcome was written."""
        return await self.completer.complete(outcome) is not None


def named(value: object) -> str | None:
    """Return the kind of an outcome for the name of a test."""
    return None if isinstance(value, str) else type(value).__name__


@pytest.fixture(autouse=True)
def pauses(monkeypatch) -> list[int]:
    return skip_delays(monkeypatch, completer_module)


# Writes


@pytest.mark.parametrize(
    ("outcome", "statement"),
    [
        (COMPLETED, "complete_claimed_jobs"),
        (FAILED, "fail_claimed_jobs"),
        (SNOOZED, "release_claimed_jobs"),
        (INTERRUPTED, "release_claimed_jobs"),
    ],
    ids=named,
)
async def test_each_end_is_written_with_the_queue_that_it_frees(outcome, statement):
    it = Scene(OWNED)

    assert await it.complete(outcome)

    [written] = it.database.queries
    assert written.statement == statement
    assert written.args[1:] == ("p1", [5], False)


@pytest.mark.parametrize("late_error", [None, LookupError("boom")])
async def test_what_a_task_wrote_itself_is_not_written_again(late_error):
    it = Scene()

    assert await it.complete(CompletedInTransaction(CLAIMED, late_error))

    assert it.database.queries == []


@pytest.mark.parametrize("outcome", OUTCOMES, ids=named)
async def test_an_outcome_is_written_under_the_id_that_claimed_the_job(outcome):
    it = Scene(OWNED)
    it.lease.rotate_id("p2")

    assert await it.complete(outcome)

    assert it.database.queries[0].args[1] == "p1"


@pytest.mark.parametrize("outcome", OUTCOMES, ids=named)
async def test_a_job_that_another_worker_holds_is_lost(outcome):
    it = Scene(NOT_OWNED)

    assert not await it.complete(outcome)

    assert len(it.database.queries) == 1


@pytest.mark.parametrize(
    ("other", "freed"),
    [
        (ClaimedJob(make_job(id=8, locked_by="p1"), 5), []),
        (ClaimedJob(make_job(id=7, locked_by="p1"), 5), []),
        (ClaimedJob(make_job(id=8, locked_by="p2"), 5), [5]),
        (ClaimedJob(make_job(id=8, locked_by="p1"), 6), [5]),
        (ClaimedJob(make_job(id=8, locked_by="p1"), None), [5]),
    ],
)
async def test_a_queue_that_is_locked_for_another_job_by_now_is_not_freed(other, freed):
    it = Scene(OWNED, claimed_jobs={7: CLAIMED, other.job.id: other})

    await it.complete(COMPLETED)

    assert it.database.queries[0].args[2] == freed


async def test_a_job_without_a_named_queue_frees_none():
    it = Scene(OWNED)

    await it.complete(Completed(ClaimedJob(make_job(id=7, locked_by="p1"), None)))

    assert it.database.queries[0].args[2] == []


@pytest.mark.feature("F216")
async def test_a_released_job_may_have_a_delay():
    it = Scene(OWNED, interrupted_delay=timedelta(seconds=2))

    await it.complete(INTERRUPTED)

    assert '"delay": 2000000' in str(it.database.queries[0].args[0])


async def test_what_must_not_run_yet_waits_for_as_long_as_it_must():
    it = Scene(OWNED, interrupted_delay=timedelta(seconds=2))

    await it.complete(Interrupted(CLAIMED, timedelta(seconds=1)))

    assert '"delay": 1000000' in str(it.database.queries[0].args[0])


# Retries


@pytest.mark.parametrize("outcome", OUTCOMES, ids=named)
async def test_a_write_that_fails_is_retried_until_it_succeeds(outcome, pauses):
    it = Scene(*[OSError("gone")] * 50, OWNED)

    assert await it.complete(outcome)

    assert pauses == list(range(50))
    # The second write is marked as a retry, because the first one may have succeeded.
    assert [each.args[3] for each in it.database.queries] == [False] + [True] * 50


async def test_what_passes_by_itself_is_not_complained_about():
    it = Scene(
        OSError("gone"),
        TimeoutError(),
        FakeDatabaseError("57P01"),
        FakeDatabaseError("40001"),
        OWNED,
    )

    await it.complete(COMPLETED)

    assert it.events == []


@pytest.mark.parametrize(
    ("outcome", "action"),
    [
        (COMPLETED, "completeJob"),
        (FAILED, "failJob"),
        (SNOOZED, "failJob"),
        (INTERRUPTED, "failJob"),
    ],
    ids=named,
)
async def test_a_rejected_outcome_is_reported_at_once_and_then_once_a_minute(
    outcome, action, monkeypatch
):
    error = FakeDatabaseError("42501")
    it = Scene(*[error] * 7, OWNED)
    clock = iter(range(0, 1000, 20))
    monkeypatch.setattr(completer_module, "time", SimpleNamespace(monotonic=lambda: next(clock)))

    await it.complete(outcome)

    assert it.events == [PoolFatalError(pool_id="p1", error=error, action=action)] * 3


@pytest.mark.parametrize("outcome", [COMPLETED, FAILED, SNOOZED], ids=named)
async def test_a_job_whose_outcome_stays_rejected_fails_with_the_message_of_the_database(outcome):
    it = Scene(*[FakeDatabaseError("P0001")] * REJECTIONS_BEFORE_FAILURE, OWNED)
    it.accepts_heartbeats()

    written = await it.completer.complete(outcome)

    assert isinstance(written, Failed)
    assert isinstance(written.error, OutcomeRefused)
    last = it.database.queries[-1]
    assert last.statement == "fail_claimed_jobs"
    assert "P0001" in str(last.args[0])


@pytest.mark.parametrize("outcome", [COMPLETED, FAILED, SNOOZED], ids=named)
async def test_while_heartbeats_are_rejected_too_the_outcome_itself_is_retried(outcome):
    it = Scene(*[FakeDatabaseError("54000")] * 3 * REJECTIONS_BEFORE_FAILURE, OWNED)

    assert await it.completer.complete(outcome) is outcome

    assert len(set(it.database.statements)) == 1


def test_the_outcome_is_written_once_the_database_accepts_heartbeats_again():
    it = Scene()
    rejections = completer_module._Rejections(COMPLETED, it.lease, CompletionTimings())
    for _ in range(2 * REJECTIONS_BEFORE_FAILURE):
        rejections.add(FakeDatabaseError("54000"))
    it.accepts_heartbeats()

    assert rejections.choose_outcome() is COMPLETED
    for _ in range(2):
        rejections.add(FakeDatabaseError("54000"))
    assert isinstance(rejections.choose_outcome(), Failed)


# Kept outcomes

KEPT = KeptRun(7, "resize", 3, Retention(results=True), 0.0, 1.0, '"x"')


def keeping(outcome: Completed | Failed) -> Completed | Failed:
    return replace(outcome, kept=KEPT if outcome is COMPLETED else replace(KEPT, result=None))


@pytest.mark.parametrize("outcome", [COMPLETED, FAILED], ids=named)
@pytest.mark.parametrize("state", ["42P01", "42501"])
async def test_nothing_is_kept_after_five_rejections_by_the_tables_of_the_history(outcome, state):
    it = Scene(*[FakeDatabaseError(state)] * 5, OWNED)

    assert await it.completer.complete(keeping(outcome)) == outcome

    keep, plain = KEEPING_STATEMENTS[type(outcome)]
    assert it.database.statements == [keep] * 5 + [plain]
    assert len(it.events) == 1


async def test_a_database_that_rejects_heartbeats_too_loses_no_kept_outcome():
    it = Scene(*[FakeDatabaseError("54000")] * 3 * REJECTIONS_BEFORE_FAILURE, OWNED)

    assert await it.completer.complete(keeping(COMPLETED)) == keeping(COMPLETED)

    assert set(it.database.statements) == {"complete_and_keep_jobs"}


async def test_both_are_written_without_the_history_if_all_is_rejected():
    """The job ends in any case, if one of the four ways is accepted."""
    it = Scene(*[FakeDatabaseError("P0001")] * 30, OWNED)
    it.accepts_heartbeats()

    assert await it.complete(keeping(COMPLETED))

    assert set(it.database.statements[10:]) == {
        "complete_and_keep_jobs",
        "complete_claimed_jobs",
        "fail_and_keep_jobs",
        "fail_claimed_jobs",
    }


async def test_a_result_that_the_database_rejects_fails_the_job_permanently_at_once():
    it = Scene(FakeDatabaseError("22P05"), OWNED)

    written = await it.completer.complete(keeping(COMPLETED))

    assert isinstance(written, Failed)
    assert written.is_permanent
    assert written.kept == replace(KEPT, result=None)
    assert it.database.statements == ["complete_and_keep_jobs", "fail_and_keep_jobs"]


@pytest.mark.parametrize("outcome", OUTCOMES, ids=named)
async def test_an_outcome_is_written_after_all_if_the_failure_is_rejected_too(outcome, pauses):
    it = Scene(*[FakeDatabaseError("42501")] * (REJECTIONS_BEFORE_FAILURE + 1), OWNED)
    it.accepts_heartbeats()

    assert await it.completer.complete(outcome) is outcome

    statements = it.database.statements
    assert statements[-1] == statements[0]


@pytest.mark.parametrize("outcome", [COMPLETED, FAILED, SNOOZED], ids=named)
@pytest.mark.parametrize("is_alive", [True, False])
async def test_an_uncertain_commit_of_the_task_counts_if_the_job_is_gone_and_the_pool_alive(
    outcome, is_alive
):
    it = Scene(NOT_OWNED, None, is_alive)

    written = await it.completer.complete(outcome, is_uncertain=True)

    # Sent as a retry, because this pool may have claimed the next job of the queue.
    assert it.database.queries[0].args[3] is True
    # Without its lease, another worker may have run the job.
    assert isinstance(written, CompletedInTransaction) if is_alive else written is None


@pytest.mark.parametrize("outcome", [COMPLETED, FAILED, SNOOZED], ids=named)
async def test_an_uncertain_commit_of_the_task_failed_if_the_job_exists(outcome):
    it = Scene(NOT_OWNED, make_job(id=7))

    assert await it.completer.complete(outcome, is_uncertain=True) is None


async def test_after_an_uncertain_commit_the_job_is_read_until_the_database_answers(pauses):
    it = Scene(NOT_OWNED, OSError("gone"), OSError("gone"), make_job(id=7), False)

    assert await it.completer.complete(FAILED, is_uncertain=True) is None
    assert pauses == [0, 1]


async def test_in_a_callers_transaction_nothing_is_retried():
    error = FakeDatabaseError("40001")
    it = Scene(error, can_retry=False)

    with pytest.raises(FakeDatabaseError) as raised:
        await it.complete(COMPLETED)

    assert raised.value is error


@pytest.mark.parametrize(
    ("outcome", "statement"),
    [
        (FAILED, "fail_claimed_jobs"),
        (SNOOZED, "fail_claimed_jobs"),
        (INTERRUPTED, "release_claimed_jobs"),
    ],
    ids=named,
)
async def test_data_that_postgresql_rejects_is_left_out_of_the_next_write(outcome, statement):
    it = Scene(FakeDatabaseError("22008"), OWNED, interrupted_delay=timedelta(seconds=2))

    assert await it.complete(outcome)

    again = it.database.queries[1]
    assert again.statement == statement
    assert '"run_at": null, "delay": null' in str(again.args[0])
    if statement == "fail_claimed_jobs":
        assert "22008" in str(again.args[0])


# Earlier writes that may have succeeded


@pytest.mark.parametrize("outcome", OUTCOMES, ids=named)
async def test_a_job_missing_at_the_second_try_was_written_by_the_first_if_the_pool_is_alive(
    outcome,
):
    it = Scene(OSError("gone"), NOT_OWNED, True)

    assert await it.complete(outcome) is True

    # Recovery removes a pool from the registry together with its jobs.
    query = it.database.queries[-1]
    assert (query.statement, query.args) == ("is_pool_alive", ("p1",))


@pytest.mark.parametrize("outcome", OUTCOMES, ids=named)
async def test_a_retry_that_finds_no_job_reports_a_lost_lock_after_recovery(outcome):
    it = Scene(OSError("gone"), NOT_OWNED, False)
    it.lease.rotate_id("p2")

    assert await it.complete(outcome) is False

    assert it.database.queries[-1].args == ("p1",)


@pytest.mark.parametrize("outcome", OUTCOMES, ids=named)
async def test_a_registry_that_rejects_the_check_lets_the_first_try_count(outcome):
    it = Scene(OSError("gone"), NOT_OWNED, FakeDatabaseError("42501"))

    assert await it.complete(outcome) is True


@pytest.mark.parametrize("outcome", OUTCOMES, ids=named)
async def test_the_registry_is_checked_again_after_a_lost_connection(outcome):
    it = Scene(OSError("gone"), NOT_OWNED, OSError("gone"), OSError("gone"), False)

    assert await it.complete(outcome) is False

    assert it.database.statements[-3:] == ["is_pool_alive"] * 3


@pytest.mark.parametrize("outcome", OUTCOMES, ids=named)
async def test_without_a_registry_the_first_try_counts(outcome):
    it = Scene(OSError("gone"), NOT_OWNED)
    it.lease.mark_unregistered()

    assert await it.complete(outcome) is True

    assert len(it.database.queries) == 2


@pytest.mark.parametrize("is_known", [True, False])
async def test_a_job_missing_at_the_first_try_is_lost(is_known):
    it = Scene(NOT_OWNED)
    if not is_known:
        it.lease.mark_unregistered()

    assert await it.complete(COMPLETED) is False

    assert len(it.database.queries) == 1


# Writes during a fetch


@pytest.mark.parametrize("outcome", OUTCOMES, ids=named)
async def test_a_second_try_waits_for_a_fetch_that_may_claim_the_job_again(outcome):
    # An outcome other than a completion releases the job, so this pool may claim it again.
    fetching, claimed_jobs = asyncio.Lock(), {7: CLAIMED}
    it = Scene(OSError("gone"), OWNED, fetch_lock=fetching, claimed_jobs=claimed_jobs)
    await fetching.acquire()
    completing = asyncio.create_task(it.complete(outcome))
    await wait_until(lambda: it.database.queries)

    claimed_jobs[7] = ClaimedJob(make_job(id=7, locked_by="p1"), 5)
    fetching.release()

    assert await completing is (outcome is not COMPLETED)
    assert len(it.database.queries) == 1


async def test_a_row_that_another_session_has_locked_does_not_delay_fetches(pauses):
    for outcome in OUTCOMES:
        fetching = asyncio.Lock()
        it = Scene(OSError("gone"), OWNED, fetch_lock=fetching)
        it.database.blocked = {7}
        pauses.clear()
        completing = asyncio.create_task(it.complete(outcome))
        await wait_until(lambda: len(pauses) > REJECTIONS_BEFORE_FAILURE)

        assert not fetching.locked()
        assert len(it.database.queries) == 1

        it.database.blocked = set()
        assert await completing
        assert it.events == []


async def test_jobs_that_cannot_be_released_now_are_returned():
    other = ClaimedJob(make_job(id=8, locked_by="p0"), None)
    for answers, blocked, left in (
        ([OWNED, {8}], set[int](), []),
        ([OWNED], {8}, [other]),
        ([{8}], {7}, [CLAIMED]),
        ([OSError("gone"), {8}], set[int](), [CLAIMED]),
    ):
        it = Scene(*answers)
        it.database.blocked = blocked

        assert await it.completer.try_release([CLAIMED, other]) == left


async def test_a_completion_of_a_job_that_was_claimed_again_is_lost():
    # A completion deletes the job. The lock was released otherwise, for example by a person.
    for pool_id in ("p1", "p2"):
        for is_known in (True, False):
            claimed_jobs = {7: ClaimedJob(make_job(id=7, locked_by=pool_id), 5)}
            it = Scene(OSError("gone"), claimed_jobs=claimed_jobs)
            if not is_known:
                it.lease.mark_unregistered()

            assert await it.complete(COMPLETED) is False

            assert len(it.database.queries) == 1


@pytest.mark.parametrize("is_alive", [True, False])
async def test_a_job_claimed_again_under_another_id_was_written_if_the_first_id_is_alive(is_alive):
    # Another pool may have recovered the job before this one claimed it again.
    fetching, claimed_jobs = asyncio.Lock(), {7: CLAIMED}
    it = Scene(OSError("gone"), is_alive, fetch_lock=fetching, claimed_jobs=claimed_jobs)
    await fetching.acquire()
    completing = asyncio.create_task(it.complete(FAILED))
    await wait_until(lambda: it.database.queries)

    claimed_jobs[7] = ClaimedJob(make_job(id=7, locked_by="p2"), 5)
    fetching.release()

    assert await completing is is_alive

    query = it.database.queries[-1]
    assert (query.statement, query.args) == ("is_pool_alive", ("p1",))


async def test_jobs_that_a_fetch_claimed_again_are_not_released():
    fetching, claimed_jobs = asyncio.Lock(), {7: CLAIMED}
    it = Scene(OSError("gone"), OWNED, fetch_lock=fetching, claimed_jobs=claimed_jobs)
    # The first write does not wait for a fetch.
    await fetching.acquire()
    assert await it.completer.try_release([CLAIMED]) == [CLAIMED]
    releasing = asyncio.create_task(it.completer.try_release([CLAIMED], attempt=1))
    await run_until_idle()
    assert not releasing.done()

    claimed_jobs[7] = ClaimedJob(make_job(id=7, locked_by="p1"), 5)
    fetching.release()

    assert await releasing == []
    assert len(it.database.queries) == 1


async def test_a_repeated_release_leaves_out_jobs_whose_rows_are_locked():
    fetching = asyncio.Lock()
    other = ClaimedJob(make_job(id=8, locked_by="p1"), None)
    it = Scene({8}, fetch_lock=fetching)
    it.database.blocked = {7}

    assert await it.completer.try_release([CLAIMED, other], attempt=1) == [CLAIMED]

    assert not fetching.locked()
    [query] = it.database.queries
    assert '"id": 8' in str(query.args[0])
    assert '"id": 7' not in str(query.args[0])
    assert query.args[2:] == ([], True)


# Batches


def of(*job_ids: int, pool_id: str = "p1") -> list[ClaimedJob]:
    return [ClaimedJob(make_job(id=each, locked_by=pool_id), None) for each in job_ids]


async def test_endings_of_one_kind_are_written_with_one_statement():
    it = Scene({1, 2})
    outcomes = [Completed(claimed_jobs) for claimed_jobs in of(1, 2, 3)]

    written = await it.completer.complete_all(outcomes)

    assert written == [*outcomes[:2], None]
    assert it.database.statements == ["complete_claimed_jobs"]


async def test_failures_of_one_batch_keep_their_own_errors():
    it = Scene({1, 2})

    await it.completer.complete_all(
        [Failed(claimed_jobs, LookupError(claimed_jobs.job.id)) for claimed_jobs in of(1, 2)]
    )

    assert it.database.statements == ["fail_claimed_jobs"]
    assert "LookupError: 1" in str(it.database.queries[0].args[0])
    assert "LookupError: 2" in str(it.database.queries[0].args[0])


async def test_endings_that_cannot_be_written_together_are_left_to_be_written_one_by_one():
    it = Scene(ConnectionError(), {1})
    outcomes = [Completed(claimed_jobs) for claimed_jobs in of(1, 2)]

    assert await it.completer.complete_all(outcomes) is None
    assert await it.completer.complete_unless_rejected(outcomes[0]) is outcomes[0]

    # The job may be completed already: a named queue is freed only together with its job.
    assert [each.args[3] for each in it.database.queries] == [False, True]


async def test_one_of_many_waits_for_a_database_that_is_unreachable(pauses):
    unreachable = [OSError("gone"), FakeDatabaseError("08006"), FakeDatabaseError("57P03")]
    it = Scene(*unreachable, {1})
    [claimed_jobs] = of(1)

    assert await it.completer.complete_unless_rejected(Completed(claimed_jobs)) is not None

    assert len(pauses) == len(unreachable)


@pytest.mark.parametrize(
    "error", [FakeDatabaseError("P0001"), FakeDatabaseError("57014"), TimeoutError()]
)
async def test_one_of_many_that_the_database_rejects_is_left_to_be_written_apart(error):
    it = Scene(error)
    [claimed_jobs] = of(1)

    with pytest.raises(type(error)):
        await it.completer.complete_unless_rejected(Completed(claimed_jobs))
