"""Scheduled tasks: patterns, items and the crontab file, without a database or a clock."""

from graphile_worker.crontab.helpers import Cron
from graphile_worker.crontab.items import CronItem, ParsedCronItem, parse_cron_items
from graphile_worker.crontab.lines import parse_crontab
from graphile_worker.crontab.patterns import TimestampDigest

__all__ = [
    "Cron",
    "CronItem",
    "ParsedCronItem",
    "TimestampDigest",
    "parse_cron_items",
    "parse_crontab",
]
