"""Statistics of measurements."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SampleStats:
    """The distribution of measurements, all in one unit."""

    minimum: float
    average: float
    p50: float
    p95: float
    p99: float
    maximum: float


def summarize(samples: Sequence[float]) -> SampleStats:
    ordered = sorted(samples)
    return SampleStats(
        minimum=ordered[0],
        average=sum(ordered) / len(ordered),
        p50=percentile(ordered, 50),
        p95=percentile(ordered, 95),
        p99=percentile(ordered, 99),
        maximum=ordered[-1],
    )


def percentile(ordered: Sequence[float], percent: int) -> float:
    """Return the smallest measurement that `percent` of all measurements do not exceed."""
    rank = -(-len(ordered) * percent // 100)
    return ordered[max(rank, 1) - 1]
