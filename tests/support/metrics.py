"""Scrape the metrics of a program, and parse them as Prometheus does."""

import urllib.request
from collections.abc import Iterator

from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as parse_openmetrics,
)
from prometheus_client.parser import text_string_to_metric_families as parse_text
from prometheus_client.samples import Sample

OPENMETRICS = "application/openmetrics-text; version=1.0.0"


class Scrape:
    """The samples of one answer."""

    def __init__(self, text: str, content_type: str = "text/plain") -> None:
        self.text = text
        self.content_type = content_type
        parse = parse_openmetrics if "openmetrics" in content_type else parse_text
        self.samples: list[Sample] = [sample for family in parse(text) for sample in family.samples]

    def find(self, name: str, **labels: str) -> Iterator[Sample]:
        """Yield the samples of a metric, named without the prefix, with these labels."""
        for sample in self.samples:
            has_labels = all(sample.labels.get(key) == value for key, value in labels.items())
            if sample.name == f"graphile_worker_{name}" and has_labels:
                yield sample

    def sum(self, name: str, **labels: str) -> float:
        """Add up the samples of a metric, 0 if there are none."""
        return sum(sample.value for sample in self.find(name, **labels))

    def has(self, name: str, **labels: str) -> bool:
        return any(True for _ in self.find(name, **labels))

    @property
    def counters(self) -> dict[tuple[str, ...], float]:
        """The samples that may never decrease."""
        return {
            (sample.name, *sorted(f"{key}={value}" for key, value in sample.labels.items())): (
                sample.value
            )
            for sample in self.samples
            if sample.name.endswith(("_total", "_count", "_sum", "_bucket"))
        }


def scrape(
    port: int | str, path: str = "/metrics", *, accept: str = "", timeout: float = 20
) -> Scrape:
    """Read the metrics of a port of this machine."""
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}{path}", headers={"Accept": accept} if accept else {}
    )
    with urllib.request.urlopen(request, timeout=20) as answer:
        return Scrape(answer.read().decode(), answer.headers["Content-Type"])
