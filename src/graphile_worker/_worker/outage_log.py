"""OutageLog: logs that the database is unreachable."""

from collections.abc import Callable

from graphile_worker._support.error_format import format_error_line
from graphile_worker._support.logs import Logger

# Seconds between two lines about the same error.
REPEAT_INTERVAL_SECONDS = 60.0


class OutageLog:
    """Logs when the database becomes unreachable, once a minute while it is, and when it is back.

    A worker uses the database in several places: an outage lasts until all of them work again.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._failing_components: set[str] = set()
        self._began_at = self._logged_at = 0.0

    @property
    def is_active(self) -> bool:
        return bool(self._failing_components)

    def record_failure(self, component: str, logger: Logger, error: BaseException) -> None:
        now = self._clock()
        if not self._failing_components:
            self._began_at = self._logged_at = now
            logger.warning("database unreachable, retrying: %s", _format_outage_reason(error))
        elif now - self._logged_at >= REPEAT_INTERVAL_SECONDS:
            self._logged_at = now
            seconds = now - self._began_at
            logger.warning(
                "database unreachable for %.0f s, retrying: %s",
                seconds,
                _format_outage_reason(error),
            )
        self._failing_components.add(component)

    def record_success(self, component: str, logger: Logger) -> None:
        if component not in self._failing_components:
            return
        self._failing_components.remove(component)
        if not self._failing_components:
            seconds = self._clock() - self._began_at
            logger.warning("database reachable again after %.1f s", seconds)


def _format_outage_reason(error: BaseException) -> str:
    has_no_message = isinstance(error, TimeoutError) and not str(error)
    return "TimeoutError: no answer in time" if has_no_message else format_error_line(error)
