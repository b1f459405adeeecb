"""The time of a test: that of this machine, until the test moves or stops it."""

from datetime import UTC, datetime, timedelta

from graphile_worker.errors import ConfigurationError, JobSpecError
from graphile_worker.jobs import RunAt, check_run_at

ZERO = timedelta(0)

ClockState = tuple[timedelta, datetime | None]


class TestClock:
    """Runs as this machine's does, or stands still; either can be moved. The server's is not."""

    __test__ = False

    def __init__(self) -> None:
        self._offset = ZERO
        self._frozen_at: datetime | None = None

    @property
    def is_frozen(self) -> bool:
        return self._frozen_at is not None

    def now(self) -> datetime:
        # Libraries that move the time of a whole program move this one too.
        return self._frozen_at or datetime.now(UTC) + self._offset

    def resolve(self, when: RunAt) -> datetime:
        """A moment, or one so long after now."""
        return self.now() + when if isinstance(when, timedelta) else when

    def freeze(self, at: datetime | None) -> None:
        if at is not None:
            _check_time(at)
        self._frozen_at = self.now() if at is None else at.astimezone(UTC)

    def move(self, to: RunAt) -> None:
        _check_time(to)
        moved = self.resolve(to).astimezone(UTC)
        if self.is_frozen:
            self._frozen_at = moved
        else:
            self._offset += moved - self.now()

    def restore(self, state: ClockState) -> None:
        """Go on as it was then."""
        self._offset, self._frozen_at = state

    @property
    def state(self) -> ClockState:
        return self._offset, self._frozen_at


def _check_time(when: object) -> None:
    try:
        check_run_at("the time of a test", when)
    except JobSpecError as error:
        raise ConfigurationError(str(error)) from None
