"""The command over several shards: a worker, migrations and their status."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from graphile_worker import Shards, sync

pytestmark = [pytest.mark.timeout(300), pytest.mark.single_version]

KEYS = [f"customer-{number}" for number in range(12)]
TASK = "async def task(payload): print('ran', payload['key'], flush=True)\n"


def run_command(*arguments: str, folder, check: bool = True, **variables: str):
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("GRAPHILE_")
    }
    environment.pop("DATABASE_URL", None)
    line = [sys.executable, "-m", "graphile_worker", *arguments]
    return subprocess.run(
        line, cwd=folder, env=environment | variables, text=True, capture_output=True, check=check
    )


@pytest.fixture
def urls(databases, cluster) -> Iterator[dict[str, str]]:
    names = {each: databases.clone("template0") for each in "ab"}
    yield {each: cluster.url(name) for each, name in names.items()}
    for name in names.values():
        cluster.drop_database(name)


def test_the_command_migrates_runs_and_counts_all_shards(urls, tmp_path, schema):
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks" / "task.py").write_text(TASK)
    text = " ".join(f"{name}={url}" for name, url in urls.items())
    (tmp_path / "graphile-worker.toml").write_text(
        f"shards = {json.dumps(text)}\nschema = {json.dumps(schema)}\n"
    )
    run_command("migrate", folder=tmp_path)
    with sync.Shards(urls, schema=schema) as shards:
        for key in KEYS:
            shards.add_job("task", {"key": key}, job_key=key)

    shown = run_command("shards", "status", folder=tmp_path).stdout.splitlines()
    drained = json.loads(
        run_command("shards", "status", "--json", "--draining-shards", "b", folder=tmp_path).stdout
    )
    output = run_command("--once", folder=tmp_path).stdout
    empty = run_command("shards", "status", folder=tmp_path).stdout

    find = Shards(urls).find_shard
    counts = {name: sum(find(key) == name for key in KEYS) for name in urls}
    assert [line.split() for line in shown] == [
        ["shard", "state", "jobs", "elsewhere"],
        *([name, "active", str(counts[name]), "0"] for name in "ab"),
    ]
    assert drained["shards"][1] == {
        "name": "b",
        "is_new": False,
        "is_draining": True,
        "total": counts["b"],
        "misplaced": counts["b"],
    }
    assert sorted(output.split()) == sorted([*KEYS, *["ran"] * len(KEYS)])
    assert [line.split()[2] for line in empty.splitlines()[1:]] == ["0", "0"]


def test_an_app_with_shards_is_run_on_one_of_them_by_its_connection(urls, tmp_path, schema):
    (tmp_path / "shop.py").write_text(
        "from graphile_worker import App, Shards\n"
        f"app = App(Shards({urls!r}), schema={schema!r})\n"
        "@app.task\n"
        "async def task(key: str) -> None: print('ran', key, flush=True)\n"
    )
    flags = ("--app", "shop:app")
    run_command("--schema-only", *flags, folder=tmp_path)
    with sync.Shards(urls, schema=schema) as shards:
        added = [shards.add_job("task", {"key": key}, job_key=key) for key in KEYS]

    one = run_command("--once", *flags, "-c", urls["a"], folder=tmp_path).stdout
    rest = run_command("--once", *flags, folder=tmp_path).stdout
    config = run_command("config", *flags, folder=tmp_path).stdout

    for output, name in ((one, "a"), (rest, "b")):
        keys = {job.key for job in added if job.shard == name}
        assert set(output.split()) - {"ran"} == keys
    assert "a=*** b=***" in config


def test_invalid_shards_are_rejected(tmp_path):
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks" / "task.py").write_text(TASK)
    cases = {
        "expected entries NAME=URL": ("--shards", "postgres://u:secret@host/db"),
        "'a' occurs twice": ("--shards", "a=x a=y"),
        "no shard is called 'c'": ("--shards", "a=x b=y", "--new-shards", "c"),
    }
    for message, flags in cases.items():
        failed = run_command("--once", *flags, folder=tmp_path, check=False)
        assert failed.returncode == 1
        assert message in failed.stderr
        assert "secret" not in failed.stderr
    failed = run_command("shards", "status", folder=tmp_path, check=False)
    assert "no shards configured" in failed.stderr
