"""`python -m benchmarks <name> [--pg 15|18] [--rounds 5] [--out FILE.json]`."""

import json
import re
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from benchmarks.adding import adding
from benchmarks.contenders import DIRECT, DRAINERS, WORKERS, Contender
from benchmarks.endurance import endurance
from benchmarks.latency import latency
from benchmarks.matrix import matrix
from benchmarks.producers import producers
from benchmarks.report import write_report
from benchmarks.retention import retention
from benchmarks.server import FLUSHING, LASTING, SETTINGS, Server, served
from benchmarks.shards import shards
from benchmarks.short import short
from benchmarks.snapshot import snapshot
from benchmarks.startup import startup
from benchmarks.surroundings import surroundings
from benchmarks.throughput import throughput
from benchmarks.waiting import waiting
from benchmarks.ways import ways
from tests.support.tools import server_bin

C = TypeVar("C", bound=Contender)

pg_option = click.option("--pg", default=18, show_default=True, help="Which PostgreSQL.")
rounds_option = click.option(
    "--rounds", default=5, show_default=True, help="How often each is measured, in turn."
)
out_option = click.option(
    "--out", type=click.Path(path_type=Path, dir_okay=False), help="Write the JSON to this file."
)
only_option = click.option(
    "--only", metavar="NAME,NAME", help="Only these; the first is what others are compared with."
)


@click.group()
def main() -> None:
    """How fast we are, beside others in the same run."""


@main.command("throughput")
@click.option("--jobs", default=100_000, show_default=True, help="How many jobs lie in the queue.")
@only_option
@rounds_option
@pg_option
@out_option
def throughput_command(jobs: int, only: str | None, rounds: int, pg: int, out: Path | None) -> None:
    """Trivial jobs in one process: rate and CPU time."""
    who = _chosen(DRAINERS, only)
    _measured("throughput", pg, out, lambda on: throughput(on, who, jobs=jobs, rounds=rounds))


@main.command("flushed")
@click.option("--jobs", default=50_000, show_default=True, help="How many jobs lie in the queue.")
@click.option("--folder", type=click.Path(path_type=Path), help="Folder on a disk for the data.")
@rounds_option
@pg_option
@out_option
def flushed_command(jobs: int, folder: Path | None, rounds: int, pg: int, out: Path | None) -> None:
    """The same on a disk, with every commit flushed, beside Node alone."""
    who = _chosen(DRAINERS, "ours,ours_once,node")
    _measured(
        "flushed",
        pg,
        out,
        lambda on: throughput(on, who, jobs=jobs, rounds=rounds),
        settings=FLUSHING,
        folder=folder or Path(tempfile.gettempdir()),
    )


@main.command("ways")
@click.option("--jobs", default=30_000, show_default=True, help="How many jobs lie in the queue.")
@click.option("--batch", default=500, show_default=True, help="How many jobs are claimed at once.")
@click.option("--folder", type=click.Path(path_type=Path), help="Folder on a disk for the data.")
@rounds_option
@pg_option
@out_option
def ways_command(
    jobs: int, batch: int, folder: Path | None, rounds: int, pg: int, out: Path | None
) -> None:
    """Ways to complete a batch and claim the next, on a disk, without running the jobs."""
    _measured(
        "ways",
        pg,
        out,
        lambda on: ways(on, jobs=jobs, batch=batch, rounds=rounds),
        settings=FLUSHING,
        folder=folder or Path(tempfile.gettempdir()),
    )


@main.command("direct")
@click.option("--jobs", default=20_000, show_default=True, help="How many jobs lie in the queue.")
@only_option
@rounds_option
@pg_option
@out_option
def direct_command(jobs: int, only: str | None, rounds: int, pg: int, out: Path | None) -> None:
    """The same without local queues: one fetch for each job."""
    who = _chosen(DIRECT, only)
    _measured("direct", pg, out, lambda on: throughput(on, who, jobs=jobs, rounds=rounds))


@main.command("latency")
@click.option("--samples", default=500, show_default=True, help="How many jobs in each round.")
@only_option
@rounds_option
@pg_option
@out_option
def latency_command(samples: int, only: str | None, rounds: int, pg: int, out: Path | None) -> None:
    """From adding a job to its start, in an idle worker."""
    who = _chosen(WORKERS, only)
    _measured("latency", pg, out, lambda on: latency(on, who, samples=samples, rounds=rounds))


@main.command("latency-own")
@click.option("--samples", default=500, show_default=True, help="How many jobs in each round.")
@rounds_option
@pg_option
@out_option
def latency_own_command(samples: int, rounds: int, pg: int, out: Path | None) -> None:
    """The same, each added with its own client, beside Node alone."""
    who = _chosen(WORKERS, "ours,node")
    _measured(
        "latency_own",
        pg,
        out,
        lambda on: latency(on, who, samples=samples, rounds=rounds, own_client=True),
    )


@main.command("add")
@click.option("--jobs", default=20_000, show_default=True, help="How many jobs in each round.")
@only_option
@rounds_option
@pg_option
@out_option
def add_command(jobs: int, only: str | None, rounds: int, pg: int, out: Path | None) -> None:
    """Adding jobs, one by one and many in a call."""
    who = _chosen(WORKERS, only)
    _measured("add", pg, out, lambda on: adding(on, who, jobs=jobs, rounds=rounds))


@main.command("producers")
@click.option("--processes", default=24, show_default=True, help="Processes that add jobs.")
@click.option("--seconds", default=5.0, show_default=True, help="Duration of a measurement.")
@click.option("--folder", type=click.Path(path_type=Path), help="Folder on a disk for the data.")
@rounds_option
@pg_option
@out_option
def producers_command(
    processes: int, seconds: float, folder: Path | None, rounds: int, pg: int, out: Path | None
) -> None:
    """Adding jobs from many processes, by when workers are notified."""
    _measured(
        "producers",
        pg,
        out,
        lambda on: producers(on, processes=processes, seconds=seconds, rounds=rounds),
        settings=FLUSHING,
        folder=folder or Path(tempfile.gettempdir()),
    )


@main.command("startup")
@rounds_option
@pg_option
@out_option
def startup_command(rounds: int, pg: int, out: Path | None) -> None:
    """Start and stop with nothing to do."""
    _measured("startup", pg, out, lambda on: startup(on, rounds=rounds))


@main.command("matrix")
@click.option("--table", "tables", multiple=True, help="Only this table; may be given again.")
@click.option("--fetches", default=7, show_default=True, help="Fetches in each cell, at least 5.")
@click.option("--scale", default=1.0, show_default=True, help="What lies beside: so many times.")
@pg_option
@out_option
def matrix_command(
    tables: tuple[str, ...], fetches: int, scale: float, pg: int, out: Path | None
) -> None:
    """One fetch on tables that hold much else."""
    _measured("matrix", pg, out, lambda on: matrix(on, names=tables, fetches=fetches, scale=scale))


@main.command("snapshot")
@click.option("--jobs", default=40_000, show_default=True, help="How many came and went before.")
@pg_option
@out_option
def snapshot_command(jobs: int, pg: int, out: Path | None) -> None:
    """What statements touch while a snapshot is held."""
    _measured("snapshot", pg, out, lambda on: snapshot(on, jobs=jobs))


@main.command("endurance")
@click.option("--minutes", default=20.0, show_default=True, help="How long it lasts.")
@click.option("--rate", default=2000, show_default=True, help="Jobs that are added in a second.")
@click.option("--held", default=4.0, show_default=True, help="Minutes with a held snapshot.")
@pg_option
@out_option
def endurance_command(minutes: float, rate: int, held: float, pg: int, out: Path | None) -> None:
    """A steady rate for long, with a snapshot held in the middle."""
    _measured(
        "endurance",
        pg,
        out,
        lambda on: endurance(on, minutes=minutes, rate=rate, held=held),
        settings=LASTING,
    )


@main.command("waiting")
@click.option("--local-queue", type=int, help="Fetch so many ahead (default: as by default).")
@pg_option
@out_option
def waiting_command(local_queue: int | None, pg: int, out: Path | None) -> None:
    """How long a fetched job waits before it starts, in a fast and in a slow pool."""
    _measured("waiting", pg, out, lambda on: waiting(on, local_queue=local_queue))


@main.command("retention")
@click.option("--jobs", default=20_000, show_default=True, help="How many jobs in each round.")
@rounds_option
@pg_option
@out_option
def retention_command(jobs: int, rounds: int, pg: int, out: Path | None) -> None:
    """What kept outcomes, results and attempts cost for each job."""
    _measured("retention", pg, out, lambda on: retention(on, jobs=jobs, rounds=rounds))


@main.command("shards")
@click.option("--jobs", default=40_000, show_default=True, help="How many jobs, on all together.")
@rounds_option
@pg_option
@out_option
def shards_command(jobs: int, rounds: int, pg: int, out: Path | None) -> None:
    """CPU time per job of one worker, on one server and over the shards of 2 and 4."""
    _measured("shards", pg, out, lambda on: shards(on, jobs=jobs, rounds=rounds, pg=pg))


@main.command("short")
@pg_option
@out_option
def short_command(pg: int, out: Path | None) -> None:
    """A short version of throughput, latency and matrix, as every check runs it."""
    _measured("short", pg, out, short)


@main.command("report")
def report_command() -> None:
    """Write docs/about/benchmarks.md and its charts from benchmarks/results."""
    for path in write_report():
        click.echo(f"wrote {path.name}")


def _chosen(contenders: Sequence[C], only: str | None) -> list[C]:
    by_name = {each.name: each for each in contenders}
    names = only.split(",") if only else list(by_name)
    for name in names:
        if name not in by_name:
            raise click.BadParameter(f"{name}: expected any of {', '.join(by_name)}")
        if (what := by_name[name].missing()) is not None:
            raise click.ClickException(
                f"{name} is not installed: {what}, or leave it out by --only"
            )
    return [by_name[name] for name in names]


def _measured(
    name: str,
    pg: int,
    out: Path | None,
    measure: Callable[[Server], dict[str, Any]],
    *,
    settings: Sequence[str] = SETTINGS,
    folder: Path | None = None,
) -> None:
    server_bin(pg)
    with served(pg, settings, folder) as server:
        found = {"benchmark": name, "surroundings": surroundings(server), **measure(server)}
    text = _json(found)
    if out is None:
        click.echo(text, nl=False)
    else:
        out.write_text(text, encoding="utf-8")


def _json(found: dict[str, Any]) -> str:
    """Readable, with the rounds of a figure on one line."""
    text = json.dumps(found, indent=2, ensure_ascii=False)
    return re.sub(r"\[[\s\d.,e+-]+\]", lambda match: " ".join(match[0].split()), text) + "\n"


if __name__ == "__main__":
    main(prog_name="python -m benchmarks")
