"""The clock of a test. It follows this machine until the test moves or freezes it."""

from datetime import UTC, datetime, timedelta

from graphile_worker.errors import ConfigurationError, JobSpecError
from graphile_worker.jobs import RunAt, check_run_at

ClockState = tuple[timedelta, datetime | None]


class TestClock:
    """A clock that a test can move and freeze. It does not change the server's clock."""

    __test__ = False

    def __init__(self) -> None:
        self._offset = timedelta(0)
        self._frozen_at: datetime | None = None

    @property
    def is_frozen(self) -> bool:
        return self._frozen_at is not None

    @property
    def state(self) -> ClockState:
        return self._offset, self._frozen_at

    def restore(self, state: ClockState) -> None:
        """Continue from an earlier state."""
        self._offset, self._frozen_at = state

    def now(self) -> datetime:
        # Libraries that move the time of a whole program move this clock too.
        return self._frozen_at or datetime.now(UTC) + self._offset

    def resolve(self, when: RunAt) -> datetime:
        """Return a time as it is, or a timedelta added to now."""
        return self.now() + when if isinstance(when, timedelta) else when

    def freeze(self, at: datetime | None) -> None:
        """Freeze the clock at a time, or now."""
        if at is not None:
            _check_time(at)
        self._frozen_at = self.now() if at is None else at.astimezone(UTC)

    def move(self, to: RunAt) -> None:
        """Move the clock to a time or by a timedelta."""
        _check_time(to)
        moved = self.resolve(to).astimezone(UTC)
        if self.is_frozen:
            self._frozen_at = moved
        else:
            self._offset += moved - self.now()


def _check_time(when: object) -> None:
    try:
        check_run_at("the time of a test", when)
    except JobSpecError as error:
        raise ConfigurationError(str(error)) from None
