"""`graphile-worker bench`: how fast is it here? In a schema of its own that is dropped again.

What measures is imported when it is asked for: every worker that starts would pay for it.
"""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any

import click

from graphile_worker._cli.settings.flags import current_flags, setting_flags
from graphile_worker.errors import ConfigurationError

if TYPE_CHECKING:
    from graphile_worker._bench.schema import BenchTarget
    from graphile_worker._bench.stats import SampleStats

POSITIVE_INT = click.IntRange(min=1)


connection_option = setting_flags("connection")
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")


@click.group()
@connection_option
def bench() -> None:
    """How fast is it here? Measured in a schema of its own, which is dropped again."""


@bench.command()
@click.option("--rounds", type=POSITIVE_INT, default=5, show_default=True, help="How often.")
@connection_option
@json_option
def startup(rounds: int, as_json: bool) -> None:
    """Start and stop a worker that finds nothing to do."""
    from graphile_worker._bench.startup import measure_startup

    def told(found: Any) -> str:
        return (
            f"start and stop, {found.rounds} times\n"
            f"  {'the command':<18} {_format_range(found.process)}\n"
            f"  {'inside a program':<18} {_format_range(found.runner)}"
        )

    _run_benchmark(lambda place: measure_startup(place, rounds=rounds), told, as_json)


@bench.command()
@click.option("--jobs", type=POSITIVE_INT, default=20_000, show_default=True, help="How many jobs.")
@click.option("--processes", type=POSITIVE_INT, default=4, show_default=True, help="Workers.")
@click.option(
    "--concurrency", type=POSITIVE_INT, default=10, show_default=True, help="Jobs at once in each."
)
@connection_option
@json_option
def throughput(jobs: int, processes: int, concurrency: int, as_json: bool) -> None:
    """Run trivial jobs in several worker processes."""
    from graphile_worker._bench.throughput import measure_throughput

    def measure(place: "BenchTarget") -> Any:
        return measure_throughput(place, jobs=jobs, processes=processes, concurrency=concurrency)

    def told(found: Any) -> str:
        return (
            f"{found.jobs:,} jobs, {found.processes} processes, {found.concurrency} at once in each"
            f"\n  {found.jobs_per_second:,.0f} jobs/s: {found.seconds:.2f} s, "
            f"{found.cpu_microseconds_per_job:.0f} µs of CPU time per job"
        )

    _run_benchmark(measure, told, as_json)


@bench.command()
@click.option("--jobs", type=POSITIVE_INT, default=1000, show_default=True, help="How many jobs.")
@connection_option
@json_option
def latency(jobs: int, as_json: bool) -> None:
    """From adding a job to its beginning, in an idle worker."""
    from graphile_worker._bench.latency import measure_latency

    def told(found: Any) -> str:
        return f"from add to start, {found.samples:,} jobs\n  {_format_percentiles(found.latency)}"

    _run_benchmark(lambda place: measure_latency(place, samples=jobs), told, as_json)


@bench.command()
@click.option("--jobs", type=POSITIVE_INT, default=20_000, show_default=True, help="How many jobs.")
@click.option("--batch", type=POSITIVE_INT, default=1000, show_default=True, help="Jobs in a call.")
@connection_option
@json_option
def add(jobs: int, batch: int, as_json: bool) -> None:
    """Add jobs: one call each, and many in one call."""
    from graphile_worker._bench.adding import measure_adding

    def told(found: Any) -> str:
        many = f"{found.batch:,} in a call"
        return (
            f"adding {found.jobs:,} jobs\n"
            f"  {'one by one':<18} {found.one_by_one_per_second:>9,.0f} jobs/s\n"
            f"  {many:<18} {found.in_batches_per_second:>9,.0f} jobs/s"
        )

    _run_benchmark(lambda place: measure_adding(place, jobs=jobs, batch=batch), told, as_json)


def _run_benchmark(
    measure: Callable[["BenchTarget"], Any], format_text: Callable[[Any], str], as_json: bool
) -> None:
    """Measure in a schema that is gone afterwards, then say what was found."""
    from graphile_worker._bench.report import format_json as json_of
    from graphile_worker._bench.schema import open_bench_target

    flags = current_flags()
    if "schema" in flags.values:
        raise ConfigurationError("bench works in a schema of its own: leave --schema away")
    with (
        _handle_interrupts(),
        open_bench_target(flags.resolve_settings().value("connection")) as place,
    ):
        found = measure(place)
    name = click.get_current_context().info_name or ""
    click.echo(json_of(name, found, place) if as_json else format_text(found))


@contextmanager
def _handle_interrupts() -> Iterator[None]:
    """Leave by way of every `finally`, whatever the signal; then with its exit code."""

    def leave(number: int, _frame: FrameType | None) -> None:
        raise _SignalReceived(number)

    before = {each: signal.signal(each, leave) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    except _SignalReceived as interrupted:
        click.echo("graphile-worker: interrupted", err=True)
        click.get_current_context().exit(128 + interrupted.number)
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


class _SignalReceived(KeyboardInterrupt):
    """A signal asked us to end; under this base psycopg also cancels the statement that runs."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def _format_range(found: "SampleStats") -> str:
    return f"min {found.minimum:.0f} ms, median {found.p50:.0f}, max {found.maximum:.0f}"


def _format_percentiles(found: "SampleStats") -> str:
    return (
        f"min {found.minimum:.2f} ms, average {found.average:.2f}, p50 {found.p50:.2f}, "
        f"p95 {found.p95:.2f}, p99 {found.p99:.2f}, max {found.maximum:.2f}"
    )
