"""The shop's page: a form, and the orders with the state of their receipts."""

from dataclasses import dataclass

try:
    from django.tasks.exceptions import TaskResultDoesNotExist
except ImportError:  # before Django 6
    from django_tasks.exceptions import TaskResultDoesNotExist

from django import forms
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import path

from shop.models import Order
from shop.tasks import send_receipt


class OrderForm(forms.ModelForm):
    """The form of an order."""

    class Meta:
        model = Order
        fields = ("email", "total")


@dataclass
class Row:
    """An order with the state of its receipt."""

    order: Order
    state: str
    said: str = ""
    attempts: int = 0

    @classmethod
    def of(cls, order: Order) -> "Row":
        """The row of an order."""
        try:
            result = send_receipt.get_result(order.task)
        except TaskResultDoesNotExist:  # the row of the outbox has not been moved yet
            return cls(order, "WAITING")
        said = result.errors[-1].traceback.splitlines()[-1] if result.errors else result._return_value or ""
        return cls(order, result.status, said, result.attempts)


def orders(request: HttpRequest) -> HttpResponse:
    """Shows the orders, and places one."""
    form = OrderForm(request.POST or None)
    if request.method == "POST" and form.is_valid():
        with transaction.atomic():
            order = form.save(commit=False)
            order.task = send_receipt.enqueue(order.email).id
            order.save()
        return redirect("/")
    rows = [Row.of(order) for order in Order.objects.order_by("-pk")[:20]]
    return render(request, "rows.html" if "rows" in request.GET else "orders.html", {"form": form, "rows": rows})


urlpatterns = [path("", orders)]
