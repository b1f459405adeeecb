"""The time of a test: that of this machine, until the test moves or stops it."""

from datetime import UTC, datetime, timedelta

from graphile_worker.errors import ConfigurationError, JobSpecError
from graphile_worker.jobs import When, check_when

ZERO = timedelta(0)

State = tuple[timedelta, datetime | None]


class TestClock:
    """Runs as this machine's does, or stands still; either can be moved. The server's is not."""

    __test__ = False

    def __init__(self) -> None:
        self._offset = ZERO
        self._stands_at: datetime | None = None

    @property
    def stands(self) -> bool:
        return self._stands_at is not None

    def now(self) -> datetime:
        # Libraries that move the time of a whole program move this one too.
        return self._stands_at or datetime.now(UTC) + self._offset

    def at(self, when: When) -> datetime:
        """A moment, or one so long after now."""
        return self.now() + when if isinstance(when, timedelta) else when

    def freeze(self, at: datetime | None) -> None:
        if at is not None:
            _check(at)
        self._stands_at = self.now() if at is None else at.astimezone(UTC)

    def move(self, to: When) -> None:
        _check(to)
        moved = self.at(to).astimezone(UTC)
        if self.stands:
            self._stands_at = moved
        else:
            self._offset += moved - self.now()

    def reset(self, to: State) -> None:
        """Go on as it was then."""
        self._offset, self._stands_at = to

    @property
    def state(self) -> State:
        return self._offset, self._stands_at


def _check(when: object) -> None:
    try:
        check_when("the time of a test", when)
    except JobSpecError as error:
        raise ConfigurationError(str(error)) from None
