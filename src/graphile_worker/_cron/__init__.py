"""Cron: add the jobs of crontab items when they are due, each minute of each item once."""
