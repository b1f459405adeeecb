"""Times in buckets that grow by a twentieth, so that many seconds can be put together."""

import math
from collections import Counter
from collections.abc import Iterable

STEP = math.log(1.05)
SMALLEST = 1e-5


class Histogram:
    """How many waited how long; a percentile is right to a twentieth."""

    def __init__(self, counts: Iterable[tuple[int, int]] = ()) -> None:
        self._counts = Counter(dict(counts))

    def add(self, seconds: float) -> None:
        self._counts[math.floor(math.log(max(seconds, SMALLEST)) / STEP)] += 1

    def include(self, other: "Histogram") -> None:
        self._counts.update(other._counts)

    @property
    def count(self) -> int:
        return self._counts.total()

    def counts(self) -> list[tuple[int, int]]:
        """What makes the same histogram again."""
        return sorted(self._counts.items())

    def percentile(self, percent: float) -> float:
        """So many percent took at most so many seconds."""
        left = self.count * percent / 100
        for bucket, count in self.counts():
            left -= count
            if left <= 0:
                return math.exp((bucket + 1) * STEP)
        raise ValueError("nothing was added")
