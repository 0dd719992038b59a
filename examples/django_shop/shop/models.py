"""The tables of the shop."""

from django.db import models


class Order(models.Model):
    """An order, and the task that sends its receipt."""

    email = models.EmailField()
    total = models.DecimalField(max_digits=8, decimal_places=2)
    task = models.CharField(max_length=32)
