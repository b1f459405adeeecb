"""Write the tables of docs/performance.md, and the charts beside it, from the JSON of the runs.

Between `<!-- figures: throughput -->` and `<!-- end -->` the page is written anew; all else is left
as it is. A benchmark has one table for each PostgreSQL that it was run on.
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
CHARTS = ROOT / "docs" / "images"
SECTION = re.compile(r"(<!-- figures: (\w+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)
RESULT = re.compile(r"(\w+)-pg(\d+)\.json")

Result = dict[str, Any]


def write_report() -> list[Path]:
    """The files that were written."""
    results = read_results(RESULTS)
    written = [PAGE]
    CHARTS.mkdir(exist_ok=True)
    PAGE.write_text(report(PAGE.read_text(encoding="utf-8"), results), encoding="utf-8")
    for name, text in charts(results).items():
        (CHARTS / name).write_text(text, encoding="utf-8")
        written.append(CHARTS / name)
    return written


def read_results(folder: Path) -> dict[str, dict[int, Result]]:
    """By benchmark, then by PostgreSQL, newest first."""
    found: dict[str, dict[int, Result]] = {}
    for path in folder.glob("*.json"):
        if match := RESULT.fullmatch(path.name):
            result = json.loads(path.read_text(encoding="utf-8"))
            found.setdefault(match[1], {})[int(match[2])] = result
    return {name: dict(sorted(found[name].items(), reverse=True)) for name in sorted(found)}


def report(page: str, results: dict[str, dict[int, Result]]) -> str:
    """The page with its sections written anew."""

    def section(match: re.Match[str]) -> str:
        of = results.get(match[2], {})
        parts = [_part(match[2], major, result) for major, result in of.items()]
        return match[1] + ("\n".join(parts) or "*Not measured yet.*\n") + match[4]

    return SECTION.sub(section, page)


def charts(results: dict[str, dict[int, Result]]) -> dict[str, str]:
    """The text of each chart by the name of its file."""
    return {
        _chart_name(name, major): CHART_OF[name](result, major)
        for name, of in results.items()
        if name in CHART_OF
        for major, result in of.items()
    }


def _part(name: str, major: int, result: Result) -> str:
    lines = [_heading(result), "", *TABLE_OF[name](result), ""]
    if name in CHART_OF:
        lines += [f"![{name} on PostgreSQL {major}](images/{_chart_name(name, major)})", ""]
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


def _throughput_chart(result: Result, major: int) -> str:
    bars = [
        Bar(
            each["label"], rate := each["jobs_per_second"]["median"], f"{rate:,.0f}", _is_ours(name)
        )
        for name, each in result["contenders"].items()
    ]
    return chart(f"Jobs per second, PostgreSQL {major}", bars)


def _matrix_chart(result: Result, major: int) -> str:
    bars = []
    for table in result["tables"]:
        cell = table["cells"]["100"]
        theirs = cell["reference_ms"]
        bars += [
            Bar(table["label"], cell["ms"], f"{cell['ms']:.1f} ms", is_ours=True),
            Bar("the reference's statement", theirs, f"{theirs:.1f} ms"),
        ]
    title = f"A fetch of 100 jobs, logarithmic, PostgreSQL {major}"
    return chart(title, bars, logarithmic=True)


def _endurance_chart(result: Result, major: int) -> str:
    panels = [
        Line("jobs begun per second", result["done"]),
        Line("p99 from add to start, ms", result["p99_ms"]),
        Line("jobs that wait", result["backlog"]),
        Line("dead rows", result["dead_rows"]),
        Line("pages touched per job", result["pages_per_job"]),
    ]
    title = f"{result['settings']['minutes']:g} minutes, a snapshot held in between"
    held = range(result["held_from_second"], result["held_until_second"])
    return lines(f"{title}, PostgreSQL {major}", panels, held)


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
    "matrix": _matrix_chart,
    "endurance": _endurance_chart,
}
