"""A key decides the shard of a job: on every machine the same, and evenly."""

import subprocess
import sys
from collections import Counter

import pytest

from graphile_worker import ConfigurationError, JobSpec, JobSpecError, Shards, rendezvous
from graphile_worker._shards import get_cron_shard_key, get_shard_key
from graphile_worker.crontab import parse_crontab
from graphile_worker.runner import build_runner

KEYS = [f"customer-{number}" for number in range(8_000)]


def build_shards(*names: str, **options) -> Shards:
    return Shards({name: f"postgresql://nowhere/{name}" for name in names}, **options)


def test_a_key_is_on_the_same_shard_in_every_process_and_version():
    # Computed with sha256sum: the jobs of a key would be split if the function changed.
    expected = {"customer-1": "c", "customer-2": "b", "": "a", "größe": "a", "x" * 600: "a"}

    found = {key: rendezvous(key, ("a", "b", "c")) for key in expected}
    # The order of the names has no effect.
    reordered = {key: rendezvous(key, ("c", "a", "b")) for key in expected}

    assert found == reordered == expected
    program = f"from graphile_worker import rendezvous; print(rendezvous({KEYS[7]!r}, ['a', 'b']))"
    for seed in ("0", "1"):
        output = subprocess.check_output(
            [sys.executable, "-c", program], env={"PYTHONHASHSEED": seed}, text=True
        )
        assert output.strip() == rendezvous(KEYS[7], ["a", "b"])


def test_keys_are_spread_evenly():
    for count in (2, 4, 7):
        names = [f"shard-{number}" for number in range(count)]
        counts = Counter(rendezvous(key, names) for key in KEYS)

        assert set(counts) == set(names)
        mean = len(KEYS) / count
        assert all(abs(each - mean) < 0.1 * mean for each in counts.values()), counts


def test_an_added_shard_takes_its_share_of_the_keys_and_no_other_key_moves():
    before, after = build_shards("a", "b", "c"), build_shards("a", "b", "c", "d")

    moved = [key for key in KEYS if before.find_shard(key) != after.find_shard(key)]

    assert {after.find_shard(key) for key in moved} == {"d"}
    assert len(moved) == pytest.approx(len(KEYS) / 4, rel=0.1)


def test_only_the_keys_of_a_draining_shard_move():
    before, after = build_shards("a", "b", "c"), build_shards("a", "b", "c", draining=["c"])

    moved = {key for key in KEYS if before.find_shard(key) != after.find_shard(key)}

    assert moved == {key for key in KEYS if before.find_shard(key) == "c"}


def test_the_shard_key_is_the_given_one_the_job_key_or_the_queue():
    cases = {
        "given": JobSpec("task", shard_key="given", job_key="key", queue_name="queue"),
        "key": JobSpec("task", job_key="key"),
        "queue": JobSpec("task", queue_name="queue"),
        "same": JobSpec("task", job_key="same", queue_name="same"),
    }

    assert [get_shard_key(spec) for spec in cases.values()] == list(cases)
    assert get_shard_key(JobSpec("task")) is None


def test_a_key_and_a_queue_need_a_shard_key():
    with pytest.raises(JobSpecError, match="may be on two shards. Pass the shard_key"):
        get_shard_key(JobSpec("task", job_key="key", queue_name="queue"))


def test_your_own_route_may_pin_keys():
    def route(key, names):
        return "eu" if key.startswith("eu-") else rendezvous(key, names)

    shards = build_shards("eu", "us", route=route)

    assert {shards.find_shard(f"eu-{number}") for number in range(20)} == {"eu"}
    assert {shards.find_shard(key) for key in KEYS[:50]} == {"eu", "us"}
    with pytest.raises(ConfigurationError, match="route returned 'asia'"):
        build_shards("eu", route=lambda key, names: "asia").find_shard("key")


def test_invalid_shards_are_rejected():
    cases = {
        "no shards": lambda: Shards({}),
        "1 to 63 printable": lambda: build_shards(""),
        "new: no shard is called 'c'": lambda: build_shards("a", new=["c"]),
        "draining must be a list": lambda: build_shards("a", draining="a"),
        "draining lists all shards": lambda: build_shards("a", draining=["a"]),
        "new lists all shards": lambda: build_shards("a", "b", new=["a", "b"]),
        "no shard is called 'c'. Shards: a, b": lambda: build_shards("a", "b").client("c"),
    }
    for message, build in cases.items():
        with pytest.raises(ConfigurationError, match=message):
            build()


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ("?id=nightly", "nightly"),
        ("?id=nightly&queue=billing", "billing"),
        ("?id=nightly&jobKey=invoice", "invoice"),
        ("?id=nightly&jobKey=billing&queue=billing", "billing"),
    ],
)
def test_a_cron_item_is_on_the_shard_of_its_key_or_queue_or_else_of_its_identifier(options, key):
    [item] = parse_crontab(f"0 4 * * * task {options}")

    assert get_cron_shard_key(item) == key


def test_a_worker_rejects_a_cron_item_with_a_key_and_a_queue():
    with pytest.raises(ConfigurationError, match=r"'nightly' has the key 'invoice' and the queue"):
        build_runner(
            build_shards("a", "b"),
            {"task": print},
            crontab="0 4 * * * task ?id=nightly&jobKey=invoice&queue=billing",
        )
