"""Tune the search index of the built site, search.json.

The search of Zensical has no setting for the rank of a page. It ranks the sections that contain
all words of a query as prefixes:

1. by field: a word in the title ranks above one in the path, and that above one in the text;
2. within a field by the number of words of the query that are close together, then by how close
   they are, then by how early they occur;
3. in a tie by the next field.

So "retry" finds a section named "Retry a job" before the page "Retries and timeouts", whose title
does not contain that prefix. `KEYWORDS` fixes that: the words are added in front of the title and
of the path of the page, hidden, so that they rank and are not shown. The first word of a page ranks
best, also above the words of its title: repeat those if readers look for them most.
"""

import json
from collections.abc import Collection
from html import escape
from pathlib import Path
from typing import Any

# By page, the words that lead to it, the most important first.
KEYWORDS = {
    "get-started/django.html": ["django", "manage.py", "django.tasks"],
    "guides/cron.html": ["cron", "recurring", "periodic", "crontab"],
    "guides/idempotency.html": ["idempotent", "exactly once"],
    "guides/progress.html": ["progress"],
    "guides/results-and-history.html": ["result", "history", "return value", "status"],
    "guides/retries-and-timeouts.html": ["retry", "backoff"],
    "guides/scheduling-and-delays.html": ["schedule a job", "delay"],
    "guides/transactional-enqueueing.html": ["transaction", "outbox"],
    "guides/unique-jobs.html": ["unique job", "deduplicate", "debounce", "throttle"],
    "operations/audit.html": ["audit"],
    "operations/autoscaling.html": ["autoscaling", "KEDA", "HPA"],
    "operations/dead-letters-and-retention.html": ["dead letter"],
    "operations/graceful-shutdown.html": ["graceful shutdown", "SIGTERM"],
    "operations/health-checks.html": ["health check", "probe", "liveness", "readiness"],
    "operations/monitoring.html": ["Prometheus", "monitoring", "metrics", "Grafana", "alerts"],
    "operations/permissions-and-security.html": ["permissions", "privileges", "roles"],
    "operations/top.html": ["dashboard"],
    "operations/troubleshooting.html": ["troubleshooting", "doctor", "diagnose"],
}

# Pages for maintainers, and lists that mention every word.
EXCLUDED = ("contributing/", "about/features.html", "changelog.html")

Item = dict[str, Any]


def tune_search_index(path: Path, pages: Collection[str]) -> None:
    """Rewrite search.json: only these pages, with their keywords."""
    index = json.loads(path.read_text(encoding="utf-8"))
    index["items"] = [
        add_keywords(item) for item in index["items"] if is_searchable(get_page(item), pages)
    ]
    path.write_text(json.dumps(index, ensure_ascii=False, separators=(",", ":")), encoding="utf-8")


def get_page(item: Item) -> str:
    page: str = item["location"].partition("#")[0]
    return page


def is_searchable(page: str, pages: Collection[str]) -> bool:
    return page in pages and not page.startswith(EXCLUDED)


def add_keywords(item: Item) -> Item:
    """Return the item of a page with its keywords. The items of its sections do not change."""
    words = KEYWORDS.get(item["location"], [])
    if not words:
        return item
    hidden = f'<span style="display: none">{escape(" ".join(words))} </span>'
    first, *others = item["path"]
    return {**item, "title": hidden + item["title"], "path": [hidden + first, *others]}
