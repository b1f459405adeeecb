"""Cron: functions that build common patterns."""

from graphile_worker.errors import ConfigurationError

DAY_NAMES = ("sunday", "monday", "tuesday", "wednesday", "thursday", "friday", "saturday")


class Cron:
    """Build patterns of five fields: `Cron.daily_at(8, 30)` is `30 8 * * *`."""

    @staticmethod
    def every_minute() -> str:
        """Match every minute.

        Returns:
            The pattern.
        """
        return "* * * * *"

    @staticmethod
    def every_minutes(minutes: int) -> str:
        """Match every n-th minute, counted from the start of each hour.

        Args:
            minutes: The interval, a divisor of 60 up to 30.

        Returns:
            The pattern.

        Raises:
            ConfigurationError: The interval is invalid.
        """
        _check_range("minutes", minutes, 1, 30)
        if 60 % minutes:
            raise ConfigurationError(f"minutes must divide an hour evenly, got {minutes}")
        return f"*/{minutes} * * * *"

    @staticmethod
    def hourly_at(minute: int) -> str:
        """Match one minute of every hour.

        Args:
            minute: From 0 to 59.

        Returns:
            The pattern.

        Raises:
            ConfigurationError: The minute is invalid.
        """
        _check_range("minute", minute, 0, 59)
        return f"{minute} * * * *"

    @staticmethod
    def daily_at(hour: int, minute: int = 0) -> str:
        """Match one time of every day.

        Args:
            hour: From 0 to 23.
            minute: From 0 to 59.

        Returns:
            The pattern.

        Raises:
            ConfigurationError: The time is invalid.
        """
        return f"{_format_time(hour, minute)} * * *"

    @staticmethod
    def weekly_on(day: str | int, hour: int, minute: int = 0) -> str:
        """Match one time on one day of every week.

        Args:
            day: The English name, or the number, from 0 for Sunday to 6.
            hour: From 0 to 23.
            minute: From 0 to 59.

        Returns:
            The pattern.

        Raises:
            ConfigurationError: The day or the time is invalid.
        """
        number = (
            DAY_NAMES.index(day.lower())
            if isinstance(day, str) and day.lower() in DAY_NAMES
            else day
        )
        _check_range("day", number, 0, 6)
        return f"{_format_time(hour, minute)} * * {number}"

    @staticmethod
    def monthly_on(date: int, hour: int, minute: int = 0) -> str:
        """Match one time on one day of every month that has this day.

        Args:
            date: From 1 to 31.
            hour: From 0 to 23.
            minute: From 0 to 59.

        Returns:
            The pattern.

        Raises:
            ConfigurationError: The day or the time is invalid.
        """
        _check_range("date", date, 1, 31)
        return f"{_format_time(hour, minute)} {date} * *"


def _format_time(hour: int, minute: int) -> str:
    _check_range("hour", hour, 0, 23)
    _check_range("minute", minute, 0, 59)
    return f"{minute} {hour}"


def _check_range(name: str, value: object, minimum: int, maximum: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not minimum <= value <= maximum:
        raise ConfigurationError(f"{name} must be from {minimum} to {maximum}, got {value!r}")
