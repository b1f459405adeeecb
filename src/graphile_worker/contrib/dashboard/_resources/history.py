"""History: throughput and latency over time, and the jobs that ended."""

from datetime import datetime
from typing import Any

from graphile_worker.contrib.dashboard._api import (
    COMPANION_MISSING,
    ApiRequest,
    ApiRoute,
    Parameter,
    Problem,
)
from graphile_worker.contrib.dashboard._resources._common import (
    ENDED_JOB_EXAMPLE,
    EXAMPLE_TIME,
    MAX_FILTER_CHARS,
    MAX_ID,
    Cache,
    build_filter_problem,
    get_redactor,
    get_sample,
    limit_error_search,
    read_limit,
    read_text,
    reject,
    show_ended_job,
)
from graphile_worker.contrib.dashboard._users import Permission
from graphile_worker.errors import FilterError
from graphile_worker.ops.filters import parse_ended_filter
from graphile_worker.ops.history import EndedPosition, HistoryMissing, plan_list_outcomes
from graphile_worker.ops.history.series import OutcomeSeries, SeriesRange, plan_get_series

MAX_PAGE = 200

# Lines of charts: the members of points that they show.
ENDED_CHART = {
    "label": "Jobs that ended, per second",
    "unit": "rate",
    "lines": [
        {"key": "succeeded", "label": "Succeeded", "color": "ready", "is_filled": True},
        {"key": "failed", "label": "Failed", "color": "failed"},
    ],
}
MEMORY_THROUGHPUT = {
    "title": "Throughput",
    "hint": "as this dashboard has seen it",
    "chart": {
        **ENDED_CHART,
        "lines": [{"key": "completed", "label": "Ended", "color": "running", "is_filled": True}],
    },
}
LATENCY = {
    "title": "Latency",
    "hint": "run time, and time from due to started",
    "chart": {
        "label": "Run time and waiting time",
        "unit": "age",
        "lines": [
            {"key": "run_p50", "label": "Run, median", "color": "running"},
            {"key": "run_p95", "label": "Run, 95 %", "color": "running", "is_dashed": True},
            {"key": "wait_p50", "label": "Wait, median", "color": "waiting"},
            {"key": "wait_p95", "label": "Wait, 95 %", "color": "waiting", "is_dashed": True},
        ],
    },
}
NO_LATENCY = {"title": "Latency", "text": {"muted": "Durations come from kept outcomes."}}
TURN_ON: dict[str, object] = {
    "title": "Turn on history",
    "text": [
        "Workers delete a job when it completes. A ",
        {"code": "Retention"},
        ", of the app or of a task, keeps its outcome:",
    ],
    "code": "app = App(retention=Retention(results=True, attempts=True))",
}
SEEN_ONLY = "Until then, the chart shows what this dashboard has seen since it started."

# All browsers share one summary. A longer bucket changes more slowly.
_CACHES = {each: Cache(seconds=min(60.0, each.step.total_seconds() / 30.0)) for each in SeriesRange}


async def get_series(request: ApiRequest) -> object:
    """Return throughput, run times and waits of a range of time."""
    service = request.service
    name = request.query.get("range") or SeriesRange.HOUR
    if name not in set(SeriesRange):
        raise reject(f"range must be one of {', '.join(SeriesRange)}")
    period = SeriesRange(name)
    task = read_text(request.query, "task")

    async def summarize() -> OutcomeSeries:
        return await service.read(
            plan_get_series(service.schemas, period, task=task, limits=service.limits)
        )

    try:
        series = await _CACHES[period].get(service, summarize, task)
    except HistoryMissing:
        return await _build_series_from_memory(request, period, task)
    return _show_series(series)


def _show_series(series: OutcomeSeries) -> dict[str, Any]:
    ended = {
        "succeeded": sum(point.succeeded or 0 for point in series.points),
        "failed": sum(point.failed or 0 for point in series.points),
    }
    has_durations = any(point.run_p50 is not None for point in series.points)
    throughput = {
        "title": "Throughput",
        "hint": f"{ended['succeeded']:,} succeeded, {ended['failed']:,} failed permanently",
        "chart": ENDED_CHART,
    }
    return {
        "now": series.now,
        "range": series.period,
        "step_seconds": series.period.step,
        "source": "outcomes",
        "points": series.points,
        "is_partial_last": True,
        "sampled_percent": series.sampled_percent,
        "coverage": series.coverage,
        "has_history": True,
        "view": {
            "coverage": _describe_coverage(series),
            "throughput": throughput if any(ended.values()) else None,
            "latency": LATENCY if has_durations else NO_LATENCY,
        },
    }


def _describe_coverage(series: OutcomeSeries) -> dict[str, object]:
    """Return of how many tasks outcomes are kept, or how to keep them."""
    coverage, sample = series.coverage, series.sampled_percent
    if not coverage.kept:
        return TURN_ON
    text = f"{coverage.kept:,} of {coverage.seen:,} known tasks keep outcomes."
    if sample is not None:
        share = "less than 1" if sample < 1 else f"{sample:.0f}"
        text += f" The figures are estimates from {share} % of the outcomes."
    return {"text": {"muted": text}}


async def _build_series_from_memory(
    request: ApiRequest, period: SeriesRange, task: str | None
) -> dict[str, Any]:
    """Return the rates that the poller has seen, where no outcomes are kept."""
    sample = await get_sample(request)
    step = period.step.total_seconds()
    start = sample.now - period.duration
    buckets: dict[int, list[float]] = {}
    # Rates are those of all tasks together.
    for point in sample.series if task is None else ():
        if point.at >= start and point.completed is not None:
            buckets.setdefault(int(point.at.timestamp() // step), []).append(point.completed)
    points = [
        {
            "at": datetime.fromtimestamp(bucket * step, sample.now.tzinfo),
            # Rates count the jobs that left the table, by success or not.
            "completed": round(sum(rates) / len(rates) * step),
            "succeeded": None,
            "failed": None,
            "run_p50": None,
            "run_p95": None,
            "wait_p50": None,
            "wait_p95": None,
        }
        for bucket, rates in sorted(buckets.items())
    ]
    return {
        "now": sample.now,
        "range": period,
        "step_seconds": step,
        "source": "memory",
        "points": points,
        "is_partial_last": True,
        "sampled_percent": None,
        "coverage": None,
        "has_history": False,
        "view": {
            "coverage": TURN_ON | {"hint": SEEN_ONLY},
            "throughput": MEMORY_THROUGHPUT if points else None,
            "latency": NO_LATENCY,
        },
    }


async def list_outcomes(request: ApiRequest) -> object:
    """List the jobs that ended, the last one first."""
    service = request.service
    text = read_text(request.query, "q", max_chars=MAX_FILTER_CHARS) or ""
    try:
        job_filter = limit_error_search(request, parse_ended_filter(text))
    except FilterError as error:
        raise build_filter_problem(error, text) from error
    try:
        page = await service.read(
            plan_list_outcomes(
                job_filter,
                service.schemas,
                limit=read_limit(request, default=50, maximum=MAX_PAGE),
                before=_read_position(request),
                limits=service.limits,
            )
        )
    except HistoryMissing as error:
        raise Problem(409, COMPANION_MISSING, str(error)) from error
    redactor = get_redactor(service)
    return {
        "now": page.now,
        "outcomes": [show_ended_job(job, redactor) for job in page.jobs],
        "next": None
        if page.next is None
        else f"{page.next.finished_at.isoformat()}_{page.next.job_id}",
    }


def _read_position(request: ApiRequest) -> EndedPosition | None:
    text = read_text(request.query, "after")
    if text is None:
        return None
    time, _, job_id = text.rpartition("_")
    try:
        # A plus sign in a query string is a space.
        position = EndedPosition(datetime.fromisoformat(time.replace(" ", "+")), int(job_id[:20]))
    except ValueError:
        raise reject("after must be `next` of another page") from None
    if position.finished_at.tzinfo is None or abs(position.job_id) > MAX_ID:
        raise reject("after must be `next` of another page")
    return position


ROUTES = (
    ApiRoute(
        method="GET",
        path="/history/series",
        permission=Permission.VIEW,
        handler=get_series,
        summary="Throughput, run times and waits over time.",
        query=(
            Parameter(name="range", help="1h, 6h, 24h or 7d (default: 1h)."),
            Parameter(name="task", help="Only jobs of this task."),
        ),
        answer={
            "now": EXAMPLE_TIME,
            "range": "1h",
            "step_seconds": 60.0,
            "source": "outcomes",
            "points": [
                {
                    "at": EXAMPLE_TIME,
                    "succeeded": 120,
                    "failed": 1,
                    "run_p50": 0.02,
                    "run_p95": 0.3,
                    "wait_p50": 0.005,
                    "wait_p95": 0.1,
                }
            ],
            "is_partial_last": True,
            "sampled_percent": None,
            "coverage": {"kept": 3, "seen": 7},
            "has_history": True,
            "view": {},
        },
    ),
    ApiRoute(
        method="GET",
        path="/history/outcomes",
        permission=Permission.VIEW,
        handler=list_outcomes,
        summary="List the jobs that ended, the last one first.",
        query=(
            Parameter(name="q", help="Filter, in the language of `graphile-worker history list`."),
            Parameter(name="after", help="`next` of the page before."),
            Parameter(name="limit", kind=int, help=f"Size of the page, at most {MAX_PAGE}."),
        ),
        answer={
            "now": EXAMPLE_TIME,
            "outcomes": [ENDED_JOB_EXAMPLE],
            "next": f"{EXAMPLE_TIME}_4711",
        },
    ),
)
