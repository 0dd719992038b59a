"""The files in deploy/ name what there is: metrics that are exposed, and paths that answer."""

from __future__ import annotations

import json
import re
import threading
from pathlib import Path

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

import penstock
from penstock.core.observe.metrics import REGISTRY, watch

ROOT = Path(__file__).resolve().parent.parent
DEPLOY = ROOT / "deploy"
NAME = re.compile(r"\bpenstock_[a-z_]+")


def exposed() -> set[str]:
    """The names of every sample, after each kind of thing was done once."""
    with penstock.open("memory:") as journal:
        journal.topic("orders").append("placed")
        journal.topic("orders").commit("billing", 0)
        queue = journal.queue("mails", max_attempts=1, dead_letter="mails.dead")
        queue.push_many(["a", "b"])
        handled = threading.Semaphore(0)

        def handle(delivery: penstock.Delivery) -> None:
            handled.release()
            assert delivery.payload == "a"

        worker = queue.worker(handle).start()
        assert handled.acquire(timeout=60) and handled.acquire(timeout=60)
        worker.stop()
        watch(journal)
        families = list(text_string_to_metric_families(REGISTRY.prometheus_text()))
    return {sample.name for family in families for sample in family.samples}


def expressions() -> dict[str, str]:
    dashboard = json.loads((DEPLOY / "grafana" / "penstock.json").read_text("utf-8"))
    found = {
        f"{panel['title']} {target['refId']}": target["expr"]
        for panel in dashboard["panels"]
        for target in panel["targets"]
    }
    alerts = yaml.safe_load((DEPLOY / "alerts.yaml").read_text("utf-8"))
    return found | {rule["alert"]: rule["expr"] for group in alerts["groups"] for rule in group["rules"]}


@pytest.fixture(scope="module")
def names() -> set[str]:
    return exposed()


@pytest.mark.parametrize("title", sorted(expressions()))
def test_a_query_asks_for_metrics_that_are_exposed(title: str, names: set[str]) -> None:
    expression = expressions()[title]
    asked = set(NAME.findall(expression.replace('job="penstock"', "")))
    assert asked <= names
    assert asked or expression.startswith("up")
    assert expression.count("(") == expression.count(")") and expression.count("{") == expression.count("}")


def test_every_metric_carries_the_prefix(names: set[str]) -> None:
    assert len(names) > 30 and [name for name in names if not name.startswith("penstock_")] == []


def test_every_yaml_file_is_one() -> None:
    files = [*DEPLOY.rglob("*.yaml"), *ROOT.glob(".github/workflows/*.yml"), ROOT / ".pre-commit-config.yaml"]
    assert len(files) >= 8
    for path in files:
        assert [document for document in yaml.safe_load_all(path.read_text("utf-8")) if document], path


def test_the_container_runs_as_a_user_of_its_own_and_asks_a_path_that_answers() -> None:
    text = (ROOT / "Dockerfile").read_text("utf-8")
    assert re.search(r"^USER penstock$", text, re.MULTILINE) and "VOLUME /data" in text and "HEALTHCHECK" in text
    from penstock.server.application import make_app

    with penstock.open("memory:") as journal:
        paths = {route.path for route in make_app(journal).routes}
    for asked in re.findall(r"7367(/[a-z]+)'", text) + re.findall(
        r"path: (/[a-z]+)", (DEPLOY / "kubernetes" / "server.yaml").read_text("utf-8")
    ):
        assert asked in paths
