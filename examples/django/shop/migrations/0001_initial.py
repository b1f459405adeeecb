import django.db.models.deletion
from django.db import migrations, models


def fill_the_shelf(apps, schema_editor):
    apps.get_model("shop", "Product").objects.create(name="tea", stock=2)


class Migration(migrations.Migration):
    initial = True
    dependencies = []
    operations = [
        migrations.CreateModel(
            "Product",
            [
                (
                    "id",
                    models.BigAutoField(
                        primary_key=True, serialize=False, auto_created=True, verbose_name="ID"
                    ),
                ),
                ("name", models.CharField(max_length=100, unique=True)),
                ("stock", models.PositiveIntegerField()),
            ],
        ),
        migrations.CreateModel(
            "Order",
            [
                (
                    "id",
                    models.BigAutoField(
                        primary_key=True, serialize=False, auto_created=True, verbose_name="ID"
                    ),
                ),
                ("email", models.EmailField(max_length=254)),
                (
                    "product",
                    models.ForeignKey("shop.product", on_delete=django.db.models.deletion.PROTECT),
                ),
                ("receipt_sent_at", models.DateTimeField(null=True)),
            ],
        ),
        migrations.RunPython(fill_the_shelf, migrations.RunPython.noop),
    ]
