"""Install the schema of the queue, and declare the models of the admin."""

from typing import ClassVar

from django.db import migrations, models

from graphile_worker.contrib.django.operations import MigrateQueue


class Migration(migrations.Migration):
    initial = True
    # Indexes are created concurrently, and other installers may work at the same time.
    atomic = False
    dependencies: ClassVar[list[tuple[str, str]]] = []
    operations = [
        MigrateQueue(level=20, companion_level=9),
        migrations.CreateModel(
            name="Job",
            fields=[
                ("id", models.BigIntegerField(primary_key=True, serialize=False)),
                ("task_identifier", models.TextField()),
                ("queue_name", models.TextField(null=True)),
                ("priority", models.SmallIntegerField()),
                ("run_at", models.DateTimeField()),
                ("attempts", models.SmallIntegerField()),
                ("max_attempts", models.SmallIntegerField()),
                ("last_error", models.TextField(null=True)),
                ("key", models.TextField(null=True)),
                ("locked_at", models.DateTimeField(null=True)),
                ("locked_by", models.TextField(null=True)),
                ("created_at", models.DateTimeField()),
                ("updated_at", models.DateTimeField()),
            ],
            options={
                "db_table": '"graphile_worker"."jobs"',
                "managed": False,
                "default_permissions": ("view",),
                "permissions": [
                    ("retry_job", "Can retry jobs"),
                    ("reschedule_job", "Can reschedule jobs"),
                    ("fail_job", "Can fail jobs"),
                    ("complete_job", "Can delete jobs as completed"),
                    ("unlock_job", "Can unlock jobs of dead workers"),
                    ("view_payload", "Can view payloads, results and whole errors"),
                ],
            },
        ),
        migrations.CreateModel(
            name="Worker",
            fields=[
                ("id", models.TextField(primary_key=True, serialize=False)),
                ("started_at", models.DateTimeField()),
                ("seen_at", models.DateTimeField()),
                ("lease", models.DurationField()),
                ("swept_at", models.DateTimeField(null=True)),
            ],
            options={
                "db_table": '"graphile_worker_ext"."pools"',
                "managed": False,
                "default_permissions": ("view",),
            },
        ),
        migrations.CreateModel(
            name="Outcome",
            fields=[
                ("job_id", models.BigIntegerField(primary_key=True, serialize=False)),
                ("task_identifier", models.TextField()),
                ("succeeded", models.BooleanField()),
                ("attempts", models.SmallIntegerField()),
                ("created_at", models.DateTimeField()),
                ("run_at", models.DateTimeField()),
                ("started_at", models.DateTimeField()),
                ("finished_at", models.DateTimeField()),
                ("expires_at", models.DateTimeField(null=True)),
                ("pool_id", models.TextField()),
                ("error", models.TextField(null=True)),
            ],
            options={
                "db_table": '"graphile_worker_ext"."outcomes"',
                "managed": False,
                "default_permissions": ("view",),
            },
        ),
    ]
