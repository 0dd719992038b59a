"""The table of orders."""

from django.db import migrations, models


class Migration(migrations.Migration):
    """Makes the table of orders."""

    initial = True
    operations = [
        migrations.CreateModel(
            name="Order",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("email", models.EmailField(max_length=254)),
                ("total", models.DecimalField(decimal_places=2, max_digits=8)),
                ("task", models.CharField(max_length=32)),
            ],
        ),
    ]
