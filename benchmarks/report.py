"""Write the figures and charts of the benchmarks page and the comparison from the JSON of the runs.

Only the parts between `<!-- figures: throughput -->` and `<!-- end -->` are written again. A
benchmark has a table and a chart of the newest PostgreSQL that it was run on.
"""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.chart import Bar, Line, chart, lines
from benchmarks.contenders.procrastinate import Procrastinate
from benchmarks.processes import ROOT

RESULTS = ROOT / "benchmarks" / "results"
PAGES = [
    ROOT / "docs" / "about" / "benchmarks.md",
    ROOT / "docs" / "get-started" / "comparison.md",
    ROOT / "docs" / "contributing" / "decisions" / "0031-lone-jobs-and-batches.md",
]
CHARTS = ROOT / "docs" / "images"
SECTION = re.compile(r"(<!-- figures: (\w+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)
RESULT = re.compile(r"(\w+)-pg(\d+)\.json")

Result = dict[str, Any]
Results = dict[str, dict[int, Result]]


def write_report() -> list[Path]:
    """Write the pages and charts, and return their paths."""
    results = read_results(RESULTS)
    written = [*PAGES]
    CHARTS.mkdir(exist_ok=True)
    for page in PAGES:
        page.write_text(report(page.read_text(encoding="utf-8"), results), encoding="utf-8")
    for name, text in charts(results).items():
        (CHARTS / name).write_text(text, encoding="utf-8")
        written.append(CHARTS / name)
    return written


def read_results(folder: Path) -> Results:
    """Return the results by benchmark, then by PostgreSQL, newest first."""
    found: Results = {}
    for path in folder.glob("*.json"):
        if match := RESULT.fullmatch(path.name):
            result = json.loads(path.read_text(encoding="utf-8"))
            found.setdefault(match[1], {})[int(match[2])] = result
    return {name: dict(sorted(found[name].items(), reverse=True)) for name in sorted(found)}


def report(page: str, results: Results) -> str:
    """Return the page with its sections written again."""

    def section(match: re.Match[str]) -> str:
        told = _about_all(match[2], results) or _about_one(match[2], results)
        return match[1] + (told or "*Not measured yet.*\n") + match[4]

    return SECTION.sub(section, page)


def charts(results: Results) -> dict[str, str]:
    """Return the text of each chart by file name."""
    return {
        _chart_name(name, major): CHART_OF[name](of[major], major)
        for name, of in results.items()
        if name in CHART_OF
        for major in [max(of)]
    }


def _about_all(name: str, results: Results) -> str:
    """Return a section about several benchmarks."""
    if name not in OVERVIEW_OF:
        return ""
    return "\n".join([*OVERVIEW_OF[name](results), ""])


def _about_one(name: str, results: Results) -> str:
    of = results.get(name)
    return _part(name, max(of), of[max(of)]) if of else ""


def _part(name: str, major: int, result: Result) -> str:
    lines = [_heading(result), "", *TABLE_OF[name](result), ""]
    if name in CHART_OF:
        lines += [
            f"![{ALT_OF[name]}, PostgreSQL {major}](../images/{_chart_name(name, major)})",
            "",
        ]
    return "\n".join(lines)


def _heading(result: Result) -> str:
    around = result["surroundings"]
    settings = ", ".join(f"{key} {value:,}" for key, value in result["settings"].items())
    versions = f"**PostgreSQL {around['postgresql']}**, Python {around['python']}"
    return f"{versions}, {around['cores']} cores, {around['date']}; {settings}:"


def _drain_table(result: Result) -> list[str]:
    lines = ["| | settings | jobs/s | CPU per job | Python is |", "|---|---|---|---|---|"]
    for name, each in result["contenders"].items():
        cpu = f"{each['cpu_us_per_job']['median']:.0f} µs" if "cpu_us_per_job" in each else ""
        rate = f"{each['jobs_per_second']['median']:,.0f}"
        lines.append(
            f"| {each['label']} | {each['settings']} | {rate} | {cpu} | {_ratio(result, name)} |"
        )
    return lines


def _latency_table(result: Result) -> list[str]:
    lines = ["| | min | p50 | p99 | Python takes |", "|---|---|---|---|---|"]
    for name, each in result["contenders"].items():
        figures = [f"{each[key]['median']:.2f} ms" for key in ("min_ms", "p50_ms", "p99_ms")]
        lines.append(f"| {each['label']} | {' | '.join(figures)} | {_ratio(result, name)} |")
    return lines


def _adding_table(result: Result) -> list[str]:
    batch = f"{result['settings']['batch']:,}"
    lines = [f"| | one by one | {batch} in a call | Python is |", "|---|---|---|---|"]
    for name, each in result["contenders"].items():
        figures = [f"{each[key]['median']:,.0f} jobs/s" for key in ("one_by_one", "in_batches")]
        lines.append(f"| {each['label']} | {' | '.join(figures)} | {_ratio(result, name)} |")
    return lines


def _startup_table(result: Result) -> list[str]:
    lines = ["| | seconds | Python takes |", "|---|---|---|"]
    for name, each in result["contenders"].items():
        seconds = f"{each['seconds']['median']:.2f}"
        lines.append(f"| {each['label']} | {seconds} | {_ratio(result, name)} |")
    return lines


def _matrix_table(result: Result) -> list[str]:
    beside = "Without the additional indexes, and the statement of Node without them:"
    return [
        *_matrix_rows(result, lambda cell: f"{cell['ms']:.1f} ms, {cell['ratio']:.1f} ×"),
        "",
        *_full_scan_rows(result),
        beside,
        "",
        *_matrix_rows(result, _without_indexes),
    ]


def _full_scan_rows(result: Result) -> list[str]:
    """Return the searches of all jobs, on tables where other fetches search around a position."""
    tables = [each for each in result["tables"] if "full_scan_ms" in each["cells"]["1"]]
    if not tables:
        return []
    rows = _matrix_rows({"tables": tables}, lambda cell: f"{cell['full_scan_ms']:.1f} ms")
    return ["A search of all jobs, for at most a tenth of the time:", "", *rows, ""]


def _blocked_table(result: Result) -> list[str]:
    return _matrix_rows(result, lambda cell: f"{cell['ratio']:.1f} ×")


def _matrix_rows(result: Result, told: Callable[[dict[str, float]], str]) -> list[str]:
    sizes = list(result["tables"][0]["cells"])
    lines = [f"| table | {' | '.join(map(_jobs, sizes))} |", "|---" * (1 + len(sizes)) + "|"]
    for table in result["tables"]:
        cells = [told(table["cells"][size]) for size in sizes]
        lines.append(f"| {table['label']} | {' | '.join(cells)} |")
    return lines


def _without_indexes(cell: dict[str, float]) -> str:
    ours = cell.get("without_indexes_ms", cell["ms"])
    return f"{ours:.1f} ms, {cell['reference_ms']:.1f} ms"


def _snapshot_table(result: Result) -> list[str]:
    claims = result["claims"]
    told = [
        f"| pages touched | {' | '.join(map(_jobs, claims))} |",
        "|---" * (1 + len(claims)) + "|",
    ]
    for label, key in (
        ("claim of Node, better plan", "reference_best"),
        ("claim of Node, worse plan", "reference_worst"),
        ("claim of Python, worse plan", "ours_worst"),
    ):
        told.append(f"| {label} | {' | '.join(f'{each[key]:,}' for each in claims.values())} |")
    for label, statement in (
        ("completion", "our finish"),
        ("failure", "our fail"),
        ("release", "our return"),
    ):
        worst = [_worst(result, statement, int(size)) for size in claims]
        told.append(f"| {label} in Python, worse plan | {' | '.join(worst)} |")
    return told


def _worst(result: Result, statement: str, size: int) -> str:
    found = [
        cell["buffers"]
        for cell in result["cells"]
        if cell["statement"] == statement and cell["jobs"] == size
    ]
    return f"{max(found):,}"


def _endurance_table(result: Result) -> list[str]:
    swept = result["seconds_to_a_fifth"]
    rows = {
        "jobs added per second": f"{result['settings']['rate']:,}",
        "jobs started per second": f"{result['rate_done']:,.0f}",
        "in the slowest ten seconds": f"{result['slowest_10_seconds']:,.0f}",
        "p99 from add to start, at the start": f"{result['p99_ms_first']:,.1f} ms",
        "while the snapshot was open": f"{result['p99_ms_held']:,.1f} ms",
        "at the end": f"{result['p99_ms_last']:,.1f} ms, {result['p99_ratio']:.2g} ×",
        "largest backlog": f"{result['largest_backlog']:,}",
        "most dead rows": f"{result['dead_rows_peak']:,}",
        "time until a fifth of them is left": "never" if swept is None else f"{swept} s",
    }
    return ["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows.items())]


def _waiting_table(result: Result) -> list[str]:
    told = [
        "| jobs of | p50 | p99 | max | kept too long while the other worker was idle |",
        "|---|---|---|---|---|",
    ]
    for name, each in result["kinds"].items():
        times = [f"{each[key]:,.0f} ms" for key in ("p50_ms", "p99_ms", "max_ms")]
        wrong = f"{each['violations']:,} of {each['samples']:,} checks"
        told.append(f"| {name} | {' | '.join(times)} | {wrong} |")
    return told


def _retention_table(result: Result) -> list[str]:
    told = [
        "| kept | write-ahead log | CPU time | of it the server | time of the write |",
        "|---|---|---|---|---|",
    ]
    for each in result["kinds"].values():
        cells = [
            f"{each['wal_bytes_per_job']['median']:,.0f} bytes",
            f"{each['cpu_us_per_job']['median']:.0f} µs",
            f"{each['server_cpu_us_per_job']['median']:.0f} µs",
            f"{each['write_us_per_job']['median']:.0f} µs",
        ]
        told.append(f"| {each['label']} | {' | '.join(cells)} |")
    return told


def _jobs(size: str) -> str:
    return "1 job" if size == "1" else f"{size} jobs"


def _ratio(result: Result, name: str) -> str:
    ratio = result["ratios"].get(name)
    return "" if ratio is None else f"{ratio['median']:.2g} ×"


# The summary


def _summary(results: Results) -> list[str]:
    """Return a line for each benchmark that a new reader asks about."""
    newest = {name: of[max(of)] for name, of in results.items()}
    return [tell(newest[name]) for name, tell in SUMMARY_OF.items() if name in newest]


def _throughput_summary(result: Result) -> str:
    ours, node = (_median(result, name, "jobs_per_second") for name in ("ours", "node"))
    return (
        f"- **Throughput.** One worker process ran {ours:,.0f} trivial jobs a second with 24 jobs "
        f"at once, {_ratio(result, 'node')} as many as Graphile Worker for Node in the same run "
        f"({node:,.0f})."
    )


def _latency_summary(result: Result) -> str:
    ours, node = (_median(result, name, "p50_ms") for name in ("ours", "node"))
    return (
        f"- **Latency.** A job starts in another process {ours:.2f} ms after you add it, with "
        f"Node after {node:.2f} ms (medians)."
    )


def _adding_summary(result: Result) -> str:
    each, many = (_median(result, "ours", key) for key in ("one_by_one", "in_batches"))
    return (
        f"- **Adding.** One connection adds {each:,.0f} jobs a second one by one, and {many:,.0f} "
        f"with {result['settings']['batch']:,} in a call."
    )


def _matrix_summary(result: Result) -> str:
    times = [table["cells"]["100"]["ms"] for table in result["tables"]]
    return (
        f"- **Full tables.** A fetch of 100 jobs took {min(times):.1f} to "
        f"{max(times):.1f} ms on {len(times)} kinds of tables, with up to a million jobs in "
        "the way."
    )


def _endurance_summary(result: Result) -> str:
    settings = result["settings"]
    return (
        f"- **Long runs.** {settings['minutes']:g} minutes at {settings['rate']:,} jobs a second: "
        f"the p99 from add to start was {result['p99_ms_first']:,.1f} ms at the beginning, "
        f"{result['p99_ms_held']:,.1f} ms while a snapshot was open, and "
        f"{result['p99_ms_last']:,.1f} ms at the end."
    )


def _startup_summary(result: Result) -> str:
    ours, node = (_median(result, name, "seconds") for name in ("ours", "node"))
    return (
        f"- **Start.** The command starts and ends in {ours:.2f} s, that of Node in {node:.2f} s."
    )


def _median(result: Result, name: str, key: str) -> float:
    found: float = result["contenders"][name][key]["median"]
    return found


# Throughput with a disk


def _flushed(results: Results) -> list[str]:
    """Return a row for each pair of versions, from the files `flushed_py…-pg….json`."""
    told = [
        "| Python | PostgreSQL | jobs/s | with `--once` | Node | Python is | with `--once` |",
        "|---|---|---|---|---|---|---|",
    ]
    for name in sorted(each for each in results if each.startswith("flushed_py")):
        for result in results[name].values():
            around = result["surroundings"]
            names = ("ours", "ours_once", "node")
            rates = {each: _median(result, each, "jobs_per_second") for each in names}
            once = rates["ours_once"] / rates["node"]
            told.append(
                f"| {around['python']} | {around['postgresql']} "
                f"| {' | '.join(f'{rate:,.0f}' for rate in rates.values())} "
                f"| {_ratio(result, 'node')} | {once:.2g} × |"
            )
    return told


# Ways to complete and claim


def _ways(results: Results) -> list[str]:
    """Return a row for each way, with its rate relative to that of the worker."""
    majors = sorted(results.get("ways", {}))
    told = [
        f"| completion and next claim | {' | '.join(f'PostgreSQL {each}' for each in majors)} |",
        "|---" * (1 + len(majors)) + "|",
    ]
    found = [results["ways"][each] for each in majors]
    for name, each in found[0]["contenders"].items() if found else ():
        rates = [result["contenders"][name]["jobs_per_second"] for result in found]
        shares = [result["ratios"].get(name, {"median": 1.0})["median"] for result in found]
        cells = [
            f"{rate['median']:,.0f} jobs/s, {1 / share:.2f} ×"
            for rate, share in zip(rates, shares, strict=True)
        ]
        told.append(f"| {each['label']} | {' | '.join(cells)} |")
    return told


# The comparison


def _comparison(results: Results) -> list[str]:
    """The figures of all who were measured beside each other, on the newest PostgreSQL."""
    newest = {name: of[max(of)] for name, of in results.items()}
    told = [
        "| | jobs | jobs/s | CPU per job | add to start, p50 | p99 | added one by one "
        "| in batches |",
        "|---|---|---|---|---|---|---|---|",
    ]
    measured = [newest[which]["contenders"] for which in ("throughput", "latency", "add")]
    for name in ("ours", "node", "rust", "pgqueuer", "procrastinate"):
        if not all(name in contenders for contenders in measured):
            continue
        rates, times, adds = (contenders[name] for contenders in measured)
        figures = [
            f"{count_jobs_run(newest['throughput'], name):,}",
            f"{rates['jobs_per_second']['median']:,.0f} jobs/s",
            f"{rates['cpu_us_per_job']['median']:.0f} µs",
            *(f"{times[key]['median']:.2f} ms" for key in ("p50_ms", "p99_ms")),
            *(f"{adds[key]['median']:,.0f} jobs/s" for key in ("one_by_one", "in_batches")),
        ]
        told.append(f"| {rates['label']} | {' | '.join(figures)} |")
    return told


def count_jobs_run(result: Result, name: str) -> int:
    """Return how many jobs a contender ran: a slow one runs a sample of them."""
    jobs: int = result["settings"]["jobs"]
    return min(jobs, SAMPLE_OF.get(name) or jobs)


# Charts


def _throughput_chart(result: Result, major: int) -> str:
    bars, notes = [], []
    for name, each in result["contenders"].items():
        rate = each["jobs_per_second"]["median"]
        note = _shorter_run(result, name)
        bars.append(Bar(each["label"] + (" *" if note else ""), rate, f"{rate:,.0f}", _kind(name)))
        notes += [f"* {note}"] if note else []
    about = f"{_on(result, major)}, {result['settings']['jobs']:,} jobs"
    return chart("Jobs per second", about, bars, unit="jobs per second", notes=notes)


def _shorter_run(result: Result, name: str) -> str | None:
    """Return a note if a queue ran only the first of the jobs."""
    ran, jobs = count_jobs_run(result, name), result["settings"]["jobs"]
    label = result["contenders"][name]["label"]
    return f"{label}: {ran:,} of the {jobs:,} jobs" if ran < jobs else None


def _latency_chart(result: Result, major: int) -> str:
    bars = []
    for name, each in result["contenders"].items():
        half, most = (each[key]["median"] for key in ("p50_ms", "p99_ms"))
        bars += [
            Bar(each["label"], half, f"p50 {half:.2f} ms", _kind(name)),
            Bar("", most, f"p99 {most:.2f} ms", _kind(name)),
        ]
    about = f"{_on(result, major)}, {result['settings']['samples']:,} jobs"
    return chart("Time from adding a job to its start", about, bars, unit="milliseconds")


def _adding_chart(result: Result, major: int) -> str:
    bars = []
    batch = f"{result['settings']['batch']:,}"
    for name, each in result["contenders"].items():
        one, many = (each[key]["median"] for key in ("one_by_one", "in_batches"))
        bars += [
            Bar(each["label"], one, f"one by one {one:,.0f}", _kind(name)),
            Bar("", many, f"{batch} per call {many:,.0f}", _kind(name)),
        ]
    about = f"{_on(result, major)}, {result['settings']['jobs']:,} jobs"
    return chart("Jobs added per second", about, bars, unit="jobs per second")


def _waiting_chart(result: Result, major: int) -> str:
    bars = []
    for name, each in result["kinds"].items():
        length = "jobs of mixed lengths" if name == "mixed" else f"jobs of {name}"
        label = f"{each['jobs']:,} {length}"
        times = {key: each[f"{key}_ms"] for key in ("p50", "p99", "max")}
        bars += [
            Bar(label if key == "p50" else "", ms, f"{key} {ms:,.0f} ms", "ours")
            for key, ms in times.items()
        ]
    about = _on(result, major)
    return chart("Time from the fetch of a job to its start", about, bars, unit="milliseconds")


def _matrix_chart(result: Result, major: int) -> str:
    bars = []
    for table in result["tables"]:
        cell = table["cells"]["100"]
        node = cell["reference_ms"]
        bars += [
            Bar(table["label"], cell["ms"], f"Python {cell['ms']:.1f} ms", "ours"),
            Bar("", node, f"Node {node:.1f} ms"),
        ]
    unit = "milliseconds, logarithmic"
    title = "Time to fetch 100 jobs, by table"
    return chart(title, _on(result, major), bars, unit=unit, logarithmic=True)


def _endurance_chart(result: Result, major: int) -> str:
    panels = [
        Line("jobs started per second", result["done"]),
        Line("p99 from add to start, ms", result["p99_ms"]),
        Line("jobs waiting", result["backlog"]),
        Line("dead rows", result["dead_rows"]),
        Line("pages read per job", result["pages_per_job"]),
    ]
    about = f"{_on(result, major)}; shaded: a snapshot was open"
    held = range(result["held_from_second"], result["held_until_second"])
    return lines(f"{result['settings']['rate']:,} jobs added per second", about, panels, held)


def _on(result: Result, major: int) -> str:
    return f"PostgreSQL {major}, {result['surroundings']['date']}"


def _kind(name: str) -> str:
    """Return the kind of a bar: this package, its statements without a worker, or another queue."""
    if name.startswith("engine"):
        return "engine"
    return "ours" if name.startswith("ours") else "others"


def _chart_name(name: str, major: int) -> str:
    return f"{name}-pg{major}.svg"


TABLE_OF: dict[str, Callable[[Result], list[str]]] = {
    "throughput": _drain_table,
    "direct": _drain_table,
    "latency": _latency_table,
    "latency_own": _latency_table,
    "add": _adding_table,
    "startup": _startup_table,
    "matrix": _matrix_table,
    "blocked": _blocked_table,
    "snapshot": _snapshot_table,
    "endurance": _endurance_table,
    "waiting": _waiting_table,
    "retention": _retention_table,
}
CHART_OF: dict[str, Callable[[Result, int], str]] = {
    "throughput": _throughput_chart,
    "latency": _latency_chart,
    "add": _adding_chart,
    "matrix": _matrix_chart,
    "endurance": _endurance_chart,
    "waiting": _waiting_chart,
}
# Descriptions of the charts. The table above each chart has the figures.
ALT_OF = {
    "throughput": "Bars of the table above: jobs per second",
    "latency": "Bars of the table above: milliseconds from adding a job to its start",
    "add": "Bars of the table above: jobs added per second",
    "matrix": "Bars of the tables above: milliseconds of a fetch of 100 jobs",
    "endurance": "Five lines over time, of which the table above has the figures",
    "waiting": "Bars of the table above: milliseconds from a fetch to the start of the job",
}
SUMMARY_OF: dict[str, Callable[[Result], str]] = {
    "throughput": _throughput_summary,
    "latency": _latency_summary,
    "add": _adding_summary,
    "matrix": _matrix_summary,
    "endurance": _endurance_summary,
    "startup": _startup_summary,
}
# Jobs of contenders that would need many minutes for all.
SAMPLE_OF = {Procrastinate.name: Procrastinate.sample}
OVERVIEW_OF: dict[str, Callable[[Results], list[str]]] = {
    "summary": _summary,
    "comparison": _comparison,
    "flushed": _flushed,
    "ways": _ways,
}
