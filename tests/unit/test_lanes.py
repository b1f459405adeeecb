"""`lane()`: the names of the queues that limit how many jobs of a key run at once."""

from collections import Counter
from uuid import UUID

import pytest

from graphile_worker import JobSpec, JobSpecError, lane
from graphile_worker.lanes import MAX_LANES

USER = UUID("12345678-1234-5678-1234-567812345678")


def test_a_lane_is_the_name_of_one_of_the_queues_of_a_key():
    names = {lane("tenant", 42, of=4) for _ in range(200)}

    assert names == {"tenant:42#1", "tenant:42#2", "tenant:42#3", "tenant:42#4"}
    assert lane("tenant", "42", of=1) == "tenant:42#1"
    assert lane("user", USER, of=1) == f"user:{USER}#1"


def test_random_lanes_of_keys_that_take_turns_are_evenly_used():
    chosen = Counter(lane("tenant", number % 4, of=4) for number in range(8_000))

    assert len(chosen) == 16
    assert min(chosen.values()) > 350


def test_jobs_with_one_by_are_in_one_lane_in_every_process():
    # Fixed, because programs in other languages compute the same numbers.
    lanes = {by: lane("tenant", 42, of=4, by=by) for by in (1, 2, 3, "order-7", "ä", USER)}

    assert lanes == {
        1: "tenant:42#4",
        2: "tenant:42#3",
        3: "tenant:42#2",
        "order-7": "tenant:42#3",
        "ä": "tenant:42#4",
        USER: "tenant:42#1",
    }
    assert lane("tenant", 42, of=4, by="1") == lanes[1]
    assert len({lane("tenant", 42, of=4, by=number) for number in range(50)}) == 4


def test_the_end_of_a_long_key_is_replaced_by_a_hash():
    longest = "x" * 116
    assert lane("tenant", longest, of=1) == f"tenant:{longest}#1"

    keys = ["x" * 117, "x" * 118, "x" * 117 + "y", "ä" * 5_000]
    names = [lane("tenant", key, of=MAX_LANES, by=7) for key in keys]

    assert len({*names, lane("tenant", longest, of=MAX_LANES, by=7)}) == 5
    for key, name in zip(keys, names, strict=True):
        assert name.startswith(f"tenant:{key[:80]}")
        assert len(name) <= 128
        JobSpec("task", queue_name=name)
        # The number of lanes does not change the rest of the name.
        assert lane("tenant", key, of=1).removesuffix("#1") == name.rpartition("#")[0]


@pytest.mark.parametrize(
    ("arguments", "options", "argument", "reason"),
    [
        (("tenant", 1), {"of": 0}, "of", "expected an integer from 1 to 1,000"),
        (("tenant", 1), {"of": MAX_LANES + 1}, "of", "expected an integer from 1 to 1,000"),
        (("tenant", 1), {"of": True}, "of", "expected an integer from 1 to 1,000"),
        (("tenant", 1), {"of": 2.0}, "of", "expected an integer from 1 to 1,000"),
        (("", 1), {"of": 4}, "prefix", "must not be empty"),
        (("tenant", ""), {"of": 4}, "key", "must not be empty"),
        (("tenant", None), {"of": 4}, "key", "expected a str, an int or a UUID"),
        (("tenant", True), {"of": 4}, "key", "expected a str, an int or a UUID"),
        (("tenant", 1.5), {"of": 4}, "key", "expected a str, an int or a UUID"),
        (("tenant", "a\x00"), {"of": 4}, "key", "PostgreSQL text cannot hold NUL"),
        (("tenant", "\ud800"), {"of": 4}, "key", "lone surrogates are not UTF-8"),
        (("tenant", 1), {"of": 4, "by": object()}, "by", "expected a str, an int or a UUID"),
        (("tenant", 1), {"of": 4, "by": ""}, "by", "must not be empty"),
    ],
)
def test_invalid_arguments_of_a_lane_are_rejected(arguments, options, argument, reason):
    with pytest.raises(JobSpecError) as caught:
        lane(*arguments, **options)
    assert caught.value.argument == argument
    assert reason in str(caught.value)
