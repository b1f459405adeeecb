"""Cron: patterns for the common cases, in words."""

from graphile_worker.errors import ConfigurationError

DAY_NAMES = ("sunday", "monday", "tuesday", "wednesday", "thursday", "friday", "saturday")


class Cron:
    """Each gives a pattern of five fields: `Cron.daily_at(8, 30)` is `30 8 * * *`."""

    @staticmethod
    def every_minute() -> str:
        return "* * * * *"

    @staticmethod
    def every_minutes(minutes: int) -> str:
        """Each hour anew, from its first minute on; so a divisor of 60."""
        _check_range("minutes", minutes, 1, 30)
        if 60 % minutes:
            raise ConfigurationError(f"minutes must divide an hour evenly, got {minutes}")
        return f"*/{minutes} * * * *"

    @staticmethod
    def hourly_at(minute: int) -> str:
        _check_range("minute", minute, 0, 59)
        return f"{minute} * * * *"

    @staticmethod
    def daily_at(hour: int, minute: int = 0) -> str:
        return f"{_format_time(hour, minute)} * * *"

    @staticmethod
    def weekly_on(day: str | int, hour: int, minute: int = 0) -> str:
        """On a day by its English name, or by its number: Sunday is 0."""
        number = (
            DAY_NAMES.index(day.lower())
            if isinstance(day, str) and day.lower() in DAY_NAMES
            else day
        )
        _check_range("day", number, 0, 6)
        return f"{_format_time(hour, minute)} * * {number}"

    @staticmethod
    def monthly_on(date: int, hour: int, minute: int = 0) -> str:
        """On that day of each month that has it."""
        _check_range("date", date, 1, 31)
        return f"{_format_time(hour, minute)} {date} * *"


def _format_time(hour: int, minute: int) -> str:
    _check_range("hour", hour, 0, 23)
    _check_range("minute", minute, 0, 59)
    return f"{minute} {hour}"


def _check_range(name: str, value: object, minimum: int, maximum: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not minimum <= value <= maximum:
        raise ConfigurationError(f"{name} must be from {minimum} to {maximum}, got {value!r}")
