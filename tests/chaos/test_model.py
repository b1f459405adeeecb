"""The model ring: random steps on a real database, and after each all tables as the model has them.

GW_MODEL_SEED=… pytest -k another_seed     # the same examples again

Hypothesis draws from the constants of all modules that were read: the same examples come with the
same tests collected.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import (
    run_state_machine_as_test,
)

from graphile_worker._sql import render
from tests.chaos.model import Spec
from tests.chaos.model_steps import TASKS, Place, Steps
from tests.support.tiers import random_seed, size

EXAMPLES = 150
EXAMPLES_OF_FIXED_SEED = size(gate=60, nightly=EXAMPLES)
ANOTHER_SEED = random_seed()
# Seconds: 300 of them may go into making an example that fails smaller.
TIME_TO_SHRINK = 600


@pytest.fixture
def place(sql):
    place = Place(sql)
    yield place
    place.close()


def run(place: Place, number: int, **given: Any) -> None:
    """Run this number of examples and steps; the seed determines them."""

    @seed(number)
    def steps() -> Any:
        return Steps(place)

    chosen = settings(
        deadline=None,
        database=None,
        print_blob=True,
        suppress_health_check=list(HealthCheck),
        **given,
    )
    make: Any = steps
    run_state_machine_as_test(make, settings=chosen)


def chosen_seed() -> int:
    """The seed of the environment, else a new one."""
    return int(os.environ.get("GW_MODEL_SEED") or ANOTHER_SEED)


@pytest.mark.single_version
@pytest.mark.timeout(TIME_TO_SHRINK)
def test_the_tables_equal_the_model_after_each_step(place):
    run(place, 8, max_examples=EXAMPLES_OF_FIXED_SEED, stateful_step_count=30)


@pytest.mark.nightly
@pytest.mark.timeout(TIME_TO_SHRINK)
def test_the_tables_equal_the_model_with_a_random_seed(place, figure):
    number = chosen_seed()
    figure(f"model ring with GW_MODEL_SEED={number}")

    run(place, number, max_examples=EXAMPLES // 3, stateful_step_count=30)


def test_a_queue_that_a_lost_claim_locked_again_is_unlocked_with_the_earlier_job(place):
    """A live pool was unlocked by force. The model found this case."""
    steps = Steps(place)
    steps.begin(many=[Spec("send", queue="q1"), Spec("resize", queue="q1")])
    how: Any = {"slot": "A", "limit": 1, "way": "everywhere", "tasks": TASKS, "flags": None}

    steps.take(**how, is_lost=False)
    steps.take_locks(what="force unlock", slot="A", wait=0, delay=0, most=1)
    steps.take(**how, is_lost=True)
    steps.end_one(number=0, how="give back")

    steps.all_is_as_in_the_model()
    steps.teardown()


def test_a_job_that_was_failed_by_hand_stays_failed_when_its_worker_releases_it(place):
    release_failed_job(place)

    # Random examples hardly ever fail a locked job by hand.
    mistake = ("release_claimed_jobs", "then jobs.attempts", "then jobs.attempts - 1")
    with mistaken(*mistake), pytest.raises(AssertionError):
        release_failed_job(place)


def release_failed_job(place: Place) -> None:
    steps = Steps(place)
    steps.begin(many=[Spec("send", max_attempts=2)])
    how: Any = {"slot": "A", "limit": 1, "way": "everywhere", "tasks": TASKS, "flags": None}

    steps.take(**how, is_lost=False)
    # Only locks that are older than four hours allow it.
    steps.pass_time(5 * 3600)
    steps.look_after("permanently fail", number=0, delay=None, priority=None)
    steps.end_one(number=0, how="give back")

    try:
        steps.all_is_as_in_the_model()
    finally:
        steps.teardown()


@pytest.mark.nightly
@pytest.mark.timeout(3600)
def test_the_tables_equal_the_model_in_many_long_examples(place, figure):
    number = chosen_seed()
    figure(f"model ring with GW_MODEL_SEED={number}")

    run(place, number, max_examples=2000, stateful_step_count=50)


# Would it notice? Each of these is one statement with one mistake.
MISTAKES = {
    "a completion that is not fenced": (
        "complete_claimed_jobs",
        "jobs.locked_by = $2::text",
        "true",
    ),
    "a failure that is not fenced": ("fail_claimed_jobs", "jobs.locked_by = $2::text", "true"),
    "a failure that keeps the queue": (
        "fail_claimed_jobs",
        "= any ($3::int[])",
        "<> all ($3::int[])",
    ),
    "a return without its attempt": ("release_claimed_jobs", "jobs.attempts - 1", "jobs.attempts"),
    "a fetch that does not look at flags": (
        "claim_soonest_jobs",
        "(jobs.flags ?| (select flags from params)) is not true",
        "true",
    ),
    "a claim of the first job that does not look at queues": (
        "claim_first_job",
        "jobs.job_queue_id is null",
        "true",
    ),
    "a fetch that takes two jobs of a queue": (
        "claim_soonest_jobs",
        "distinct on (first.job_queue_id)",
        "",
    ),
}

# One of each kind shows that the gate notices mistakes: a completion, a failure and a claim.
SOME_MISTAKES = size(
    gate=[
        "a completion that is not fenced",
        "a failure that keeps the queue",
        "a fetch that takes two jobs of a queue",
    ],
    nightly=list(MISTAKES),
)

# And these take more steps to meet.
RARE_MISTAKES = {
    "a completion sent again that frees a queue taken since": (
        "complete_claimed_jobs",
        "(not $4::boolean or exists (select from finished))",
        "true",
    ),
    "a failure that waits too long": (
        "fail_claimed_jobs",
        "least(jobs.attempts, 10)",
        "jobs.attempts + 1",
    ),
    "a lost fetch of which queues stay locked": (
        "release_orphaned_claims",
        "job_queues.locked_by = $1::text",
        "false",
    ),
    "a fetch that looks at run_at first": (
        "claim_soonest_jobs",
        "order by priority, run_at, id",
        "order by run_at, priority, id",
    ),
    "a recovery of pools that live": (
        "recover_jobs",
        "($4::boolean or pools.seen_at < pg_catalog.now() - pools.lease)",
        "true",
    ),
    "a recovery that spends the last attempt": (
        "recover_jobs",
        "least(jobs.attempts, jobs.max_attempts - 1)",
        "jobs.attempts",
    ),
    "a recovery that never quarantines": (
        "recover_jobs",
        "when outcomes.is_quarantined then",
        "when false then",
    ),
    "a recovery that revives": ("recover_jobs", "jobs.updated_at > jobs.locked_at", "false"),
    "a sweep of stale locks that takes its own": (
        "unlock_stale_jobs",
        "jobs.locked_by is distinct from $2::text",
        "true",
    ),
}


@contextmanager
def mistaken(statement: str, right: str, wrong: str) -> Iterator[None]:
    """One statement has another text; what was rendered before is forgotten, and after."""
    original = render._load_source

    def source(name: str) -> str:
        text = original(name)
        if name != statement:
            return text
        if right not in text:
            # Not an assertion, which the test expects of a mistake.
            raise LookupError(f"{statement} does not contain {right!r}")
        return text.replace(right, wrong)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(render, "_load_source", source)
        _forget_rendered()
        try:
            yield
        finally:
            _forget_rendered()


def _forget_rendered() -> None:
    render.render.cache_clear()
    render.render_bytes.cache_clear()


@pytest.mark.parametrize("mistake", MISTAKES | RARE_MISTAKES)
def test_each_mistake_changes_its_statement(mistake):
    statement, right, wrong = (MISTAKES | RARE_MISTAKES)[mistake]
    text = render._load_source(statement)

    with mistaken(statement, right, wrong):
        assert render._load_source(statement) != text


@pytest.mark.single_version
@pytest.mark.timeout(300)
@pytest.mark.parametrize("mistake", SOME_MISTAKES)
def test_a_mistake_in_one_statement_is_noticed(place, mistake):
    with mistaken(*MISTAKES[mistake]):
        notice(place)


@pytest.mark.nightly
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("mistake", RARE_MISTAKES)
def test_a_mistake_that_shows_rarely_is_noticed(place, mistake):
    # Whether the usual examples show it depends on the modules that were read.
    with mistaken(*RARE_MISTAKES[mistake]):
        notice(place, examples=3000)


def notice(place: Place, examples: int = EXAMPLES) -> None:
    """An assertion fails in one of the examples; any other error would be the mistake's."""
    with pytest.raises(AssertionError):
        run(
            place,
            8,
            max_examples=examples,
            stateful_step_count=30,
            phases=[Phase.generate],
            report_multiple_bugs=False,
        )
