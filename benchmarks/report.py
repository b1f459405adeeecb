"""Write figures and charts of docs/performance.md and docs/comparison.md from the JSON of the runs.

Between `<!-- figures: throughput -->` and `<!-- end -->` a page is written anew; all else is left
as it is. A benchmark has a table for each PostgreSQL that it was run on, and a chart of the newest.
"""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.chart import Bar, Line, chart, lines
from benchmarks.processes import ROOT

RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "performance.md"
PAGES = [PAGE, ROOT / "docs" / "comparison.md"]
CHARTS = ROOT / "docs" / "images"
SECTION = re.compile(r"(<!-- figures: (\w+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)
RESULT = re.compile(r"(\w+)-pg(\d+)\.json")

Result = dict[str, Any]
Results = dict[str, dict[int, Result]]


def write_report() -> list[Path]:
    """The files that were written."""
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
    """By benchmark, then by PostgreSQL, newest first."""
    found: Results = {}
    for path in folder.glob("*.json"):
        if match := RESULT.fullmatch(path.name):
            result = json.loads(path.read_text(encoding="utf-8"))
            found.setdefault(match[1], {})[int(match[2])] = result
    return {name: dict(sorted(found[name].items(), reverse=True)) for name in sorted(found)}


def report(page: str, results: Results) -> str:
    """The page with its sections written anew."""

    def section(match: re.Match[str]) -> str:
        told = _about_all(match[2], results) or _about_one(match[2], results)
        return match[1] + (told or "*Not measured yet.*\n") + match[4]

    return SECTION.sub(section, page)


def charts(results: Results) -> dict[str, str]:
    """The text of each chart by the name of its file."""
    return {
        _chart_name(name, major): CHART_OF[name](of[major], major)
        for name, of in results.items()
        if name in CHART_OF
        for major in [max(of)]
    }


def _about_all(name: str, results: Results) -> str:
    """A section that is made of several benchmarks."""
    if name not in OVERVIEW_OF:
        return ""
    return "\n".join([*OVERVIEW_OF[name](results), ""])


def _about_one(name: str, results: Results) -> str:
    of = results.get(name, {})
    return "\n".join(
        _part(name, major, result, with_chart=name in CHART_OF and major == max(of))
        for major, result in of.items()
    )


def _part(name: str, major: int, result: Result, *, with_chart: bool) -> str:
    lines = [_heading(result), "", *TABLE_OF[name](result), ""]
    if with_chart:
        lines += [f"![{ALT_OF[name]}, PostgreSQL {major}](images/{_chart_name(name, major)})", ""]
    return "\n".join(lines)


def _heading(result: Result) -> str:
    around = result["surroundings"]
    settings = ", ".join(f"{key} {value:,}" for key, value in result["settings"].items())
    versions = f"**PostgreSQL {around['postgresql']}**, Python {around['python']}"
    return f"{versions}, {around['cores']} cores, {around['date']}; {settings}:"


def _drain_table(result: Result) -> list[str]:
    lines = ["| | settings | jobs/s | CPU per job | ours is |", "|---|---|---|---|---|"]
    for name, each in result["contenders"].items():
        cpu = f"{each['cpu_us_per_job']['median']:.0f} µs" if "cpu_us_per_job" in each else ""
        rate = f"{each['jobs_per_second']['median']:,.0f}"
        lines.append(
            f"| {each['label']} | {each['settings']} | {rate} | {cpu} | {_ratio(result, name)} |"
        )
    return lines


def _latency_table(result: Result) -> list[str]:
    lines = ["| | min | p50 | p99 | ours takes |", "|---|---|---|---|---|"]
    for name, each in result["contenders"].items():
        figures = [f"{each[key]['median']:.2f} ms" for key in ("min_ms", "p50_ms", "p99_ms")]
        lines.append(f"| {each['label']} | {' | '.join(figures)} | {_ratio(result, name)} |")
    return lines


def _adding_table(result: Result) -> list[str]:
    batch = f"{result['settings']['batch']:,}"
    lines = [f"| | one by one | {batch} in a call | ours is |", "|---|---|---|---|"]
    for name, each in result["contenders"].items():
        figures = [f"{each[key]['median']:,.0f} jobs/s" for key in ("one_by_one", "in_batches")]
        lines.append(f"| {each['label']} | {' | '.join(figures)} | {_ratio(result, name)} |")
    return lines


def _startup_table(result: Result) -> list[str]:
    lines = ["| | seconds | ours takes |", "|---|---|---|"]
    for name, each in result["contenders"].items():
        seconds = f"{each['seconds']['median']:.2f}"
        lines.append(f"| {each['label']} | {seconds} | {_ratio(result, name)} |")
    return lines


def _matrix_table(result: Result) -> list[str]:
    beside = "Without our indexes, and the statement of the reference there:"
    return [
        *_matrix_rows(result, lambda cell: f"{cell['ms']:.1f} ms, {cell['ratio']:.1f} ×"),
        "",
        beside,
        "",
        *_matrix_rows(result, _without_indexes),
    ]


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
        ("the reference's claim, its better plan", "reference_best"),
        ("the reference's claim, its worse plan", "reference_worst"),
        ("our claim, its worse plan", "ours_worst"),
    ):
        told.append(f"| {label} | {' | '.join(f'{each[key]:,}' for each in claims.values())} |")
    for statement in ("our finish", "our fail", "our return"):
        worst = [_worst(result, statement, int(size)) for size in claims]
        told.append(f"| {statement}, its worse plan | {' | '.join(worst)} |")
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
        "jobs per second, added": f"{result['settings']['rate']:,}",
        "begun": f"{result['rate_done']:,.0f}",
        "begun, in the slowest ten seconds": f"{result['slowest_10_seconds']:,.0f}",
        "p99 from add to start, at the beginning": f"{result['p99_ms_first']:,.1f} ms",
        "while the snapshot was held": f"{result['p99_ms_held']:,.1f} ms",
        "at the end": f"{result['p99_ms_last']:,.1f} ms, {result['p99_ratio']:.2g} ×",
        "most jobs that waited": f"{result['largest_backlog']:,}",
        "most dead rows": f"{result['dead_rows_peak']:,}",
        "a fifth of them, after the release": "never" if swept is None else f"{swept} s",
    }
    return ["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows.items())]


def _waiting_table(result: Result) -> list[str]:
    told = [
        "| jobs of | p50 | p99 | max | held too long while the other pool was idle |",
        "|---|---|---|---|---|",
    ]
    for name, each in result["kinds"].items():
        times = [f"{each[key]:,.0f} ms" for key in ("p50_ms", "p99_ms", "max_ms")]
        wrong = f"{each['violations']:,} of {each['samples']:,} looks"
        told.append(f"| {name} | {' | '.join(times)} | {wrong} |")
    return told


def _jobs(size: str) -> str:
    return "1 job" if size == "1" else f"{size} jobs"


def _ratio(result: Result, name: str) -> str:
    ratio = result["ratios"].get(name)
    return "" if ratio is None else f"{ratio['median']:.2g} ×"


# What stands at the top of the page


def _summary(results: Results) -> list[str]:
    """A line for each benchmark whose figure a newcomer would ask for."""
    newest = {name: of[max(of)] for name, of in results.items()}
    return [tell(newest[name]) for name, tell in SUMMARY_OF.items() if name in newest]


def _throughput_summary(result: Result) -> str:
    ours, node = (_median(result, name, "jobs_per_second") for name in ("ours", "node"))
    return (
        f"- **Throughput.** One worker process ran {ours:,.0f} trivial jobs a second with its "
        f"defaults, {_ratio(result, 'node')} as many as Graphile Worker for Node in the same run "
        f"({node:,.0f})."
    )


def _latency_summary(result: Result) -> str:
    ours, node = (_median(result, name, "p50_ms") for name in ("ours", "node"))
    return (
        f"- **Latency.** A job that is added starts in another process after {ours:.2f} ms, Node's "
        f"after {node:.2f} ms (medians)."
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
        f"- **A table full of other things.** A fetch of 100 jobs took {min(times):.1f} to "
        f"{max(times):.1f} ms on {len(times)} kinds of tables, with up to a million jobs in "
        "the way."
    )


def _endurance_summary(result: Result) -> str:
    settings = result["settings"]
    return (
        f"- **For long.** {settings['minutes']:g} minutes at {settings['rate']:,} jobs a second: "
        f"the p99 from add to start was {result['p99_ms_first']:,.1f} ms at the beginning, "
        f"{result['p99_ms_held']:,.1f} ms while somebody held a snapshot, and "
        f"{result['p99_ms_last']:,.1f} ms at the end."
    )


def _startup_summary(result: Result) -> str:
    ours, node = (_median(result, name, "seconds") for name in ("ours", "node"))
    return f"- **Start.** The command starts and ends in {ours:.2f} s, Node's in {node:.2f} s."


def _median(result: Result, name: str, key: str) -> float:
    found: float = result["contenders"][name][key]["median"]
    return found


# The page that compares


def _comparison(results: Results) -> list[str]:
    """The figures of all who were measured beside each other, on the newest PostgreSQL."""
    newest = {name: of[max(of)] for name, of in results.items()}
    told = [
        "| | jobs/s | CPU per job | add to start, p50 | p99 | added one by one | in batches |",
        "|---|---|---|---|---|---|---|",
    ]
    for name in ("ours", "node", "pgqueuer", "procrastinate"):
        rates, times, adds = (
            newest[which]["contenders"][name] for which in ("throughput", "latency", "add")
        )
        figures = [
            f"{rates['jobs_per_second']['median']:,.0f} jobs/s",
            f"{rates['cpu_us_per_job']['median']:.0f} µs",
            *(f"{times[key]['median']:.2f} ms" for key in ("p50_ms", "p99_ms")),
            *(f"{adds[key]['median']:,.0f} jobs/s" for key in ("one_by_one", "in_batches")),
        ]
        told.append(f"| {rates['label']} | {' | '.join(figures)} |")
    return told


# Charts


def _throughput_chart(result: Result, major: int) -> str:
    bars = [
        Bar(
            each["label"], rate := each["jobs_per_second"]["median"], f"{rate:,.0f}", _is_ours(name)
        )
        for name, each in result["contenders"].items()
    ]
    return chart("Jobs per second", _on(result, major), bars)


def _latency_chart(result: Result, major: int) -> str:
    bars = []
    for name, each in result["contenders"].items():
        half, most = (each[key]["median"] for key in ("p50_ms", "p99_ms"))
        bars += [
            Bar(each["label"], half, f"p50 {half:.2f} ms", _is_ours(name)),
            Bar("", most, f"p99 {most:.2f} ms", _is_ours(name)),
        ]
    return chart("From adding a job to its start", _on(result, major), bars)


def _adding_chart(result: Result, major: int) -> str:
    bars = []
    for name, each in result["contenders"].items():
        one, many = (each[key]["median"] for key in ("one_by_one", "in_batches"))
        bars += [
            Bar(each["label"], one, f"one by one {one:,.0f}", _is_ours(name)),
            Bar("", many, f"in batches {many:,.0f}", _is_ours(name)),
        ]
    return chart("Jobs added per second", _on(result, major), bars)


def _waiting_chart(result: Result, major: int) -> str:
    bars = []
    for name, each in result["kinds"].items():
        label = "jobs of mixed lengths" if name == "mixed" else f"jobs of {name}"
        times = {key: each[f"{key}_ms"] for key in ("p50", "p99", "max")}
        bars += [
            Bar(label if key == "p50" else "", ms, f"{key} {ms:,.0f} ms", is_ours=True)
            for key, ms in times.items()
        ]
    return chart("From a fetch to the start of the job", _on(result, major), bars)


def _matrix_chart(result: Result, major: int) -> str:
    bars = []
    for table in result["tables"]:
        cell = table["cells"]["100"]
        theirs = cell["reference_ms"]
        bars += [
            Bar(table["label"], cell["ms"], f"{cell['ms']:.1f} ms", is_ours=True),
            Bar("", theirs, f"the reference {theirs:.1f} ms"),
        ]
    about = f"{_on(result, major)}, logarithmic"
    return chart("A fetch of 100 jobs", about, bars, logarithmic=True)


def _endurance_chart(result: Result, major: int) -> str:
    panels = [
        Line("jobs begun per second", result["done"]),
        Line("p99 from add to start, ms", result["p99_ms"]),
        Line("jobs that wait", result["backlog"]),
        Line("dead rows", result["dead_rows"]),
        Line("pages touched per job", result["pages_per_job"]),
    ]
    about = f"{_on(result, major)}; shaded: a snapshot was held"
    held = range(result["held_from_second"], result["held_until_second"])
    return lines(f"{result['settings']['rate']:,} jobs per second", about, panels, held)


def _on(result: Result, major: int) -> str:
    return f"PostgreSQL {major}, {result['surroundings']['date']}"


def _is_ours(name: str) -> bool:
    return name.startswith("ours")


def _chart_name(name: str, major: int) -> str:
    return f"{name}-pg{major}.svg"


TABLE_OF: dict[str, Callable[[Result], list[str]]] = {
    "throughput": _drain_table,
    "direct": _drain_table,
    "latency": _latency_table,
    "add": _adding_table,
    "startup": _startup_table,
    "matrix": _matrix_table,
    "snapshot": _snapshot_table,
    "endurance": _endurance_table,
    "waiting": _waiting_table,
}
CHART_OF: dict[str, Callable[[Result, int], str]] = {
    "throughput": _throughput_chart,
    "latency": _latency_chart,
    "add": _adding_chart,
    "matrix": _matrix_chart,
    "endurance": _endurance_chart,
    "waiting": _waiting_chart,
}
# What stands in for a chart that cannot be seen: the table above it has the figures.
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
OVERVIEW_OF: dict[str, Callable[[Results], list[str]]] = {
    "summary": _summary,
    "comparison": _comparison,
}
