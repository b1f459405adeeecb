"""`graphile-worker bench`: measure this machine and this database in a temporary schema.

The measuring modules are imported on demand, because every worker waits for the imports.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from graphile_worker._cli.arguments import POSITIVE_INT, json_option
from graphile_worker._cli.settings.flags import (
    Command,
    current_flags,
    current_queue_settings,
    setting_flags,
)
from graphile_worker.errors import ConfigurationError

if TYPE_CHECKING:
    from graphile_worker._bench.schema import BenchTarget
    from graphile_worker._bench.stats import SampleStats

connection_option = setting_flags("connection")


def count_option(flag: str, default: int, text: str) -> Callable[[Command], Command]:
    return click.option(
        flag, type=POSITIVE_INT, default=default, help=f"{text} (default: {default})."
    )


@click.group()
@connection_option
def bench() -> None:
    """Measure throughput and latency on this database."""


@bench.command()
@count_option("--rounds", 5, "Number of rounds")
@connection_option
@json_option
def startup(rounds: int, as_json: bool) -> None:
    """Measure the start and stop of an idle worker."""
    from graphile_worker._bench.startup import measure_startup

    def format_text(result: Any) -> str:
        return (
            f"start and stop, {result.rounds} times\n"
            f"  {'the command':<18} {_format_range(result.process)}\n"
            f"  {'inside a program':<18} {_format_range(result.runner)}"
        )

    _run_benchmark(lambda target: measure_startup(target, rounds=rounds), format_text, as_json)


@bench.command()
@count_option("--jobs", 20_000, "Number of jobs")
@count_option("--processes", 4, "Number of worker processes")
@count_option("--concurrency", 10, "Number of jobs that a process runs at once")
@connection_option
@json_option
def throughput(jobs: int, processes: int, concurrency: int, as_json: bool) -> None:
    """Measure the throughput of trivial jobs."""
    from graphile_worker._bench.throughput import measure_throughput

    def measure(target: "BenchTarget") -> Any:
        return measure_throughput(target, jobs=jobs, processes=processes, concurrency=concurrency)

    def format_text(result: Any) -> str:
        return (
            f"{result.jobs:,} jobs, {result.processes} processes, "
            f"{result.concurrency} at once in each\n"
            f"  {result.jobs_per_second:,.0f} jobs/s: {result.seconds:.2f} s, "
            f"{result.cpu_microseconds_per_job:.0f} µs of CPU time per job"
        )

    _run_benchmark(measure, format_text, as_json)


@bench.command()
@count_option("--jobs", 1000, "Number of jobs")
@connection_option
@json_option
def latency(jobs: int, as_json: bool) -> None:
    """Measure the time from adding a job to its start."""
    from graphile_worker._bench.latency import measure_latency

    def format_text(result: Any) -> str:
        return (
            f"from add to start, {result.samples:,} jobs\n  {_format_percentiles(result.latency)}"
        )

    _run_benchmark(lambda target: measure_latency(target, samples=jobs), format_text, as_json)


@bench.command()
@count_option("--jobs", 20_000, "Number of jobs")
@count_option("--batch", 1000, "Number of jobs per call")
@connection_option
@json_option
def add(jobs: int, batch: int, as_json: bool) -> None:
    """Measure adding jobs, one per call and many per call."""
    from graphile_worker._bench.adding import measure_adding

    def format_text(result: Any) -> str:
        many = f"{result.batch:,} in a call"
        return (
            f"adding {result.jobs:,} jobs\n"
            f"  {'one by one':<18} {result.one_by_one_per_second:>9,.0f} jobs/s\n"
            f"  {many:<18} {result.in_batches_per_second:>9,.0f} jobs/s"
        )

    _run_benchmark(
        lambda target: measure_adding(target, jobs=jobs, batch=batch), format_text, as_json
    )


def _run_benchmark(
    measure: Callable[["BenchTarget"], Any], format_text: Callable[[Any], str], as_json: bool
) -> None:
    """Measure in a temporary schema, then print the result."""
    from graphile_worker._bench.report import format_json
    from graphile_worker._bench.schema import open_bench_target
    from graphile_worker._cli.interrupts import handle_interrupts

    if "schema" in current_flags().values:
        raise ConfigurationError("bench creates its own temporary schema. Remove --schema.")
    connection = current_queue_settings().value("connection")
    with handle_interrupts(), open_bench_target(connection) as target:
        result = measure(target)
    name = click.get_current_context().info_name or ""
    click.echo(format_json(name, result, target) if as_json else format_text(result))


def _format_range(stats: "SampleStats") -> str:
    return f"min {stats.minimum:.0f} ms, median {stats.p50:.0f}, max {stats.maximum:.0f}"


def _format_percentiles(stats: "SampleStats") -> str:
    return (
        f"min {stats.minimum:.2f} ms, average {stats.average:.2f}, p50 {stats.p50:.2f}, "
        f"p95 {stats.p95:.2f}, p99 {stats.p99:.2f}, max {stats.maximum:.2f}"
    )
