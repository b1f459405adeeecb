"""The queue as models of Django: for permissions, content types, URLs and your own queries.

The tables belong to the migrations of Graphile Worker. Never write to them through these models.
"""

from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed
from django.db import models

from graphile_worker._sql.identifiers import Schemas, quote_identifier
from graphile_worker.contrib.django._settings import SETTING_NAME, get_settings


class Job(models.Model):
    """A job that has not ended, as the view `jobs` shows it."""

    id = models.BigIntegerField(primary_key=True)
    task_identifier = models.TextField()
    queue_name = models.TextField(null=True)
    priority = models.SmallIntegerField()
    run_at = models.DateTimeField()
    attempts = models.SmallIntegerField()
    max_attempts = models.SmallIntegerField()
    last_error = models.TextField(null=True)
    key = models.TextField(null=True)
    locked_at = models.DateTimeField(null=True)
    locked_by = models.TextField(null=True)
    created_at = models.DateTimeField()
    updated_at = models.DateTimeField()

    class Meta:
        managed = False
        db_table = '"graphile_worker"."jobs"'
        default_permissions = ("view",)
        permissions = [
            ("retry_job", "Can retry jobs"),
            ("reschedule_job", "Can reschedule jobs"),
            ("fail_job", "Can fail jobs"),
            ("complete_job", "Can delete jobs as completed"),
            ("unlock_job", "Can unlock jobs of dead workers"),
            ("view_payload", "Can view payloads, results and whole errors"),
        ]

    def __str__(self) -> str:
        return f"job {self.pk}"


class Worker(models.Model):
    """A pool of workers that is registered: it sends heartbeats, or has died."""

    id = models.TextField(primary_key=True)
    started_at = models.DateTimeField()
    seen_at = models.DateTimeField()
    lease = models.DurationField()
    swept_at = models.DateTimeField(null=True)

    class Meta:
        managed = False
        db_table = '"graphile_worker_ext"."pools"'
        default_permissions = ("view",)

    def __str__(self) -> str:
        return f"worker {self.pk}"


class Outcome(models.Model):
    """What became of an ended job. A job that was retried by hand has several."""

    job_id = models.BigIntegerField(primary_key=True)
    task_identifier = models.TextField()
    succeeded = models.BooleanField()
    attempts = models.SmallIntegerField()
    created_at = models.DateTimeField()
    run_at = models.DateTimeField()
    started_at = models.DateTimeField()
    finished_at = models.DateTimeField()
    expires_at = models.DateTimeField(null=True)
    pool_id = models.TextField()
    error = models.TextField(null=True)

    class Meta:
        managed = False
        db_table = '"graphile_worker_ext"."outcomes"'
        default_permissions = ("view",)

    def __str__(self) -> str:
        return f"outcome of job {self.pk}"


def use_schema(schema: str) -> None:
    """Read the tables of another schema.

    `makemigrations` sees no change, because it compares the `db_table` of the class. Django cannot
    query schemas with a dollar sign in their name. The admin does not use its queries.
    """
    schemas = Schemas.from_names(schema)
    tables: dict[Any, tuple[str, str]] = {
        Job: (schemas.shared, "jobs"),
        Worker: (schemas.companion, "pools"),
        Outcome: (schemas.companion, "outcomes"),
    }
    for model, names in tables.items():
        # Django leaves quoted names as they are. Its driver reads a % as a parameter.
        model._meta.db_table = ".".join(map(quote_identifier, names)).replace("%", "%%")


def _follow_setting(*, setting: str = SETTING_NAME, **_: object) -> None:
    if setting != SETTING_NAME:
        return
    try:
        use_schema(get_settings().schema)
    except (ImproperlyConfigured, ValueError):
        # A check reports it.
        return


_follow_setting()
setting_changed.connect(_follow_setting, dispatch_uid="graphile_worker.models")
