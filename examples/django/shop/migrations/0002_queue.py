"""Install the schema of the queue, unless a worker has already installed it."""

from django.db import migrations
from graphile_worker import migration_sql


def install(apps, schema_editor):
    with schema_editor.connection.cursor() as cursor:
        cursor.execute("select to_regclass('graphile_worker.migrations') is not null")
        (is_installed,) = cursor.fetchone()
        if not is_installed:
            cursor.execute(migration_sql("graphile_worker"))


class Migration(migrations.Migration):
    dependencies = [("shop", "0001_initial")]
    # Reverting keeps the queue: other programs may use it, and its jobs would be lost.
    operations = [migrations.RunPython(install, migrations.RunPython.noop)]
