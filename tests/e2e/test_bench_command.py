"""`graphile-worker bench`: its results, its temporary schema, and its exit codes."""

import json
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from psycopg.conninfo import make_conninfo

from graphile_worker._cli.commands.bench import bench
from tests.conftest import TestDatabase
from tests.support.pages import ROOT
from tests.support.processes import Program, Programs, eventually
from tests.support.sql import Sql

STATISTICS = ["minimum", "average", "p50", "p95", "p99", "maximum"]


@pytest.fixture
def programs(tmp_path: Path, empty_database: TestDatabase, behind: Sql) -> Iterator[Programs]:
    """Programs whose environment names an empty database."""
    with Programs(tmp_path, DATABASE_URL=empty_database.url) as programs:
        yield programs


@pytest.fixture
def measure(programs: Programs) -> Callable[..., dict[str, Any]]:
    """Return the JSON result of a benchmark."""

    def run(*arguments: str) -> dict[str, Any]:
        done = programs.run_to_end("bench", *arguments, "--json")
        assert done.code == 0, done.err
        result: dict[str, Any] = json.loads(done.out)
        return result

    return run


# Results


@pytest.mark.feature("F297")
def test_the_benchmarks_are_startup_throughput_latency_and_add(programs):
    done = programs.run_to_end("bench", "--help")

    assert done.code == 0
    listed = re.findall(r"^  (\w+)", done.out.partition("Commands:")[2], re.MULTILINE)
    assert listed == ["add", "latency", "startup", "throughput"]


@pytest.mark.feature("F297")
def test_help_lists_each_benchmark_with_its_defaults():
    page = (ROOT / "docs/reference/command-line.md").read_text(encoding="utf-8")

    sections = re.findall(
        r"^### `graphile-worker bench (\w+)`$(.*?)(?=^#)", page + "#", re.MULTILINE | re.DOTALL
    )

    assert [name for name, _ in sections] == list(bench.commands)
    for name, section in sections:
        for flag, default in _defaults(bench.commands[name]):
            assert re.search(rf"^\| `{flag}.*default: {default}", section, re.MULTILINE), flag


def _defaults(command: click.Command) -> list[tuple[str, Any]]:
    numbers = [each for each in command.params if isinstance(each.type, click.IntRange)]
    return [(each.opts[0], each.default) for each in numbers]


@pytest.mark.feature("F298")
def test_startup_measures_the_start_and_stop_of_an_idle_worker(programs):
    # For real, because the start of Python is part of the result.
    done = programs.without_fork.run_to_end("bench", "startup", "--rounds", "2", "--json")
    result = json.loads(done.out)

    assert result["rounds"] == 2
    assert list(result["process"]) == list(result["runner"]) == STATISTICS
    # The process also starts Python.
    assert result["process"]["minimum"] > result["runner"]["minimum"] > 0


@pytest.mark.feature("F299")
def test_throughput_runs_the_given_number_of_jobs_and_processes(measure):
    result = measure("throughput", "--jobs", "300", "--processes", "2", "--concurrency", "3")

    assert (result["jobs"], result["processes"], result["concurrency"]) == (300, 2, 3)
    assert result["jobs_per_second"] == pytest.approx(300 / result["seconds"])
    assert result["cpu_microseconds_per_job"] > 0


@pytest.mark.feature("F299")
def test_throughput_defaults_to_20000_jobs_in_4_processes_10_at_once():
    defaults = {each.name: each.default for each in bench.commands["throughput"].params}

    assert (defaults["jobs"], defaults["processes"], defaults["concurrency"]) == (20_000, 4, 10)


@pytest.mark.feature("F300")
def test_latency_has_minimum_average_percentiles_and_maximum(measure):
    result = measure("latency", "--jobs", "20")

    stats = result["latency"]
    assert result["samples"] == 20
    assert list(stats) == STATISTICS
    assert 0 < stats["minimum"] <= stats["average"] <= stats["maximum"]
    assert stats["minimum"] <= stats["p50"] <= stats["p95"] <= stats["p99"] <= stats["maximum"]


def test_adding_is_measured_one_by_one_and_many_in_a_call(measure):
    result = measure("add", "--jobs", "250", "--batch", "100")

    assert (result["jobs"], result["batch"]) == (250, 100)
    assert result["one_by_one_per_second"] > 0
    assert result["in_batches_per_second"] > 0


@pytest.mark.feature("F301")
def test_the_result_has_the_versions(measure, empty_database):
    result = measure("add", "--jobs", "10")

    assert result["benchmark"] == "add"
    assert result["postgresql"].startswith(f"{empty_database.cluster.major}.")
    assert {"graphile_worker", "python", "psycopg"} <= set(result)


@pytest.mark.parametrize(
    ("arguments", "pattern"),
    [
        (["startup", "--rounds", "1"], r"the command +min \d+ ms, median \d+, max \d+\n"),
        (["throughput", "--jobs", "50", "--processes", "1"], r"\d+ jobs/s: \d+\.\d\d s"),
        (["latency", "--jobs", "5"], r"min \d+\.\d\d ms, average \d.+ p99 \d.+ max \d"),
        (["add", "--jobs", "50"], r"1,000 in a call +[\d,]+ jobs/s"),
    ],
)
def test_without_json_the_result_is_a_line_of_text(programs, arguments, pattern):
    done = programs.run_to_end("bench", *arguments)

    assert (done.code, done.err) == (0, "")
    assert re.search(pattern, done.out)


# Database and schema


def test_the_connection_flag_works_before_and_after_the_subcommand(tmp_path, empty_database):
    with Programs(tmp_path) as programs:
        first = programs.run_to_end("-c", empty_database.url, "bench", "add", "--jobs", "1")
        second = programs.run_to_end("bench", "-c", empty_database.url, "add", "--jobs", "1")
        third = programs.run_to_end("bench", "add", "--jobs", "1", "-c", empty_database.dsn)

    assert [first.code, second.code, third.code] == [0, 0, 0]


def test_a_benchmark_drops_its_temporary_schema(programs, behind):
    before = schemas(behind)

    done = programs.run_to_end("bench", "add", "--jobs", "10", GRAPHILE_WORKER_SCHEMA="jobs")

    assert done.code == 0
    assert schemas(behind) == before


def test_bench_rejects_a_schema(programs, behind):
    before = schemas(behind)

    done = programs.run_to_end("-s", "jobs", "bench", "add")

    assert done.code == 1
    assert done.err == (
        "graphile-worker: bench creates its own temporary schema. Remove --schema.\n"
    )
    assert schemas(behind) == before


@pytest.mark.parametrize("arguments", [["--jobs", "0"], ["--jobs", "many"], ["--nonsense"]])
def test_invalid_arguments_exit_with_status_2(programs, arguments):
    done = programs.run_to_end("bench", "throughput", *arguments)

    assert done.code == 2
    assert arguments[0] in done.err


# Errors and signals


def test_after_an_error_the_schema_is_dropped(programs, behind, empty_database):
    # The benchmark itself needs two connections, so its workers get none.
    behind.run("create role few login connection limit 2")
    behind.run(f'grant create on database "{empty_database.name}" to few')
    before = schemas(behind)
    url = make_conninfo(empty_database.dsn, user="few")

    done = programs.run_to_end("bench", "throughput", "--jobs", "10", "-c", url)
    behind.run(f'revoke create on database "{empty_database.name}" from few')
    behind.run("drop role few")

    assert done.code == 1
    assert done.err.startswith("graphile-worker: a worker process stopped: ")
    assert "too many connections" in done.err
    assert schemas(behind) == before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_after_a_signal_the_schema_is_dropped(programs, behind, number):
    before = schemas(behind)
    program = programs.command("bench", "latency", "--jobs", "100000")
    wait_until_running(program, behind)

    code = program.stop(number)

    assert (code, program.out, program.err) == (128 + number, "", "graphile-worker: interrupted\n")
    assert schemas(behind) == before
    # A backend leaves pg_stat_activity some time after its client has closed the connection.
    eventually(lambda: sessions(behind) == 0, "its sessions have ended")


def test_after_two_signals_the_schema_is_dropped(programs, behind):
    before = schemas(behind)
    program = programs.command("bench", "latency", "--jobs", "100000")
    wait_until_running(program, behind)

    program.signal(signal.SIGINT)
    code = program.stop(signal.SIGINT)

    assert code in (128 + signal.SIGINT, -signal.SIGINT)
    assert schemas(behind) == before


def test_the_workers_of_a_killed_benchmark_end(programs, behind):
    program = programs.command("bench", "latency", "--jobs", "100000")
    wait_until_running(program, behind)

    program.stop(signal.SIGKILL)

    eventually(lambda: sessions(behind) == 0, "its workers have ended")


def wait_until_running(program: Program, behind: Sql) -> None:
    """Wait until a worker is registered."""

    def has_worker() -> bool:
        assert program.is_running, program.err
        names = schemas(behind)
        tables = [f'"{name}".pools' for name in names if name.endswith("_ext")]
        return any(
            behind.value(f"select to_regclass('{table}') is not null")
            and behind.value(f"select count(*) from {table}") > 0
            for table in tables
        )

    eventually(has_worker, "a worker of the benchmark is registered")


def schemas(behind: Sql) -> set[str]:
    rows = behind.run("select nspname from pg_namespace where nspname !~ '^pg_(toast_)?temp_'")
    return {row[0] for row in rows}


def sessions(behind: Sql) -> int:
    """Count the other sessions of the database."""
    count: int = behind.value(
        "select count(*) from pg_stat_activity where datname = current_database() "
        "and pid <> pg_backend_pid() and backend_type = 'client backend'"
    )
    return count
