"""The files in deploy/ fit each other and the program: each command line is one, each name leads to what it names."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from penstock.cli.main import app
from penstock.server.running import read_tokens

ROOT = Path(__file__).resolve().parent.parent
DEPLOY = ROOT / "deploy"
DOCKERFILE = (ROOT / "Dockerfile").read_text("utf-8")
PORT = 7367


def read(name: str) -> Any:
    return yaml.safe_load((DEPLOY / name).read_text("utf-8"))


def manifests(name: str) -> dict[str, dict[str, Any]]:
    """The objects of a Kubernetes file, by kind."""
    found = [one for one in yaml.safe_load_all((DEPLOY / "kubernetes" / name).read_text("utf-8")) if one]
    assert len(found) == len({one["kind"] for one in found})
    return {one["kind"]: one for one in found}


def docker_words(instruction: str) -> list[str]:
    """The words of the last instruction of a kind that has a JSON list."""
    return list(json.loads(re.findall(rf"^ *{instruction} (\[.*\])$", DOCKERFILE, re.MULTILINE)[-1]))


def docker_variables() -> dict[str, str]:
    return dict(pair.split("=", 1) for pair in re.findall(r"^ENV (.*)$", DOCKERFILE, re.MULTILINE)[0].split())


def unit(name: str) -> dict[str, str]:
    lines = (DEPLOY / "systemd" / name).read_text("utf-8").splitlines()
    return dict(line.split("=", 1) for line in lines if "=" in line and not line.startswith("#"))


def container(name: str, kind: str) -> dict[str, Any]:
    (only,) = manifests(name)[kind]["spec"]["template"]["spec"]["containers"]
    return dict(only)


def command_lines() -> dict[str, list[str]]:
    """Every penstock command line in the files, without the program's name."""
    served, worker = unit("penstock.service")["ExecStart"], unit("penstock-worker@.service")["ExecStart"]
    lines = {
        "the container": [*docker_words("ENTRYPOINT"), *docker_words("CMD")],
        "kubernetes, the server": [*docker_words("ENTRYPOINT"), *container("server.yaml", "StatefulSet")["args"]],
        "kubernetes, a worker": container("worker.yaml", "Deployment")["command"],
        "systemd, the server": shlex.split(served),
        "systemd, a worker": shlex.split(worker.replace("%i", "emails").replace("${HANDLER}", "mails:send")),
    }
    assert all(words[0].rpartition("/")[2] == "penstock" for words in lines.values())
    return {name: words[1:] for name, words in lines.items()}


@pytest.mark.parametrize("where", sorted(command_lines()))
def test_a_command_line_is_one_that_the_program_takes(where: str) -> None:
    words = command_lines()[where]
    command = app.get_command(app.make_context("penstock", ["--help"], resilient_parsing=True), words[0])
    assert command is not None
    with command.make_context(words[0], words[1:]) as parsed:
        assert parsed.args == []


def test_the_container_installs_its_extras_and_keeps_its_store_in_the_volume() -> None:
    import tomllib

    extras = re.findall(r'"\.\[([a-z,]+)\]"', DOCKERFILE)[0].split(",")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert set(extras) <= set(project["optional-dependencies"]) and {"server", "cli"} <= set(extras)
    url = docker_variables()["PENSTOCK_URL"]
    assert url.startswith("/data/") and "VOLUME /data" in DOCKERFILE
    assert "install -d -o penstock -g penstock -m 0700 /data" in DOCKERFILE
    assert f"EXPOSE {PORT}" in DOCKERFILE and f"127.0.0.1:{PORT}/healthz" in DOCKERFILE
    for copied in re.findall(r"^COPY (?!--from)(.*) \S+$", DOCKERFILE, re.MULTILINE):
        for name in copied.split():
            assert (ROOT / name).exists() and f"!{name}" in (ROOT / ".dockerignore").read_text("utf-8").split()


def test_the_healthcheck_tells_a_server_that_answers_from_one_that_does_not() -> None:
    import penstock
    from server.serving import TOKENS, serving

    program, *words = json.loads(re.findall(r"^ +CMD (\[.*\])$", DOCKERFILE, re.MULTILINE)[0])
    assert program == "python"
    with penstock.open("memory:") as journal, serving(journal, tokens=TOKENS) as served:
        asked = [sys.executable, *(word.replace(str(PORT), str(served.port)) for word in words)]
        assert subprocess.run(asked, timeout=60, check=False).returncode == 0, "it brings no token"
    assert subprocess.run(asked, stderr=subprocess.DEVNULL, timeout=60, check=False).returncode == 1


def test_compose_mounts_files_that_are_there_and_names_its_own_services() -> None:
    compose = read("compose.yaml")
    services = compose["services"]
    used = set()
    for name, service in services.items():
        for mount in service.get("volumes", ()):
            source = mount.split(":")[0]
            if source.startswith("."):
                assert (DEPLOY / source).exists(), (name, source)
            else:
                used.add(source)
    assert used == set(compose["volumes"])
    assert (DEPLOY / services["journal"]["build"] / "Dockerfile").exists()
    assert services["journal"]["volumes"] == ["journal:/data"]
    assert services["journal"]["ports"] == [f"127.0.0.1:{PORT}:{PORT}"]
    token = services["journal"]["environment"]["PENSTOCK_SERVE_TOKENS"]
    assert read_tokens(re.sub(r"\$\{.*\}", "0123456789abcdef", token)) == {"0123456789abcdef": "admin"}


def test_prometheus_and_grafana_find_what_they_show() -> None:
    services, prometheus = read("compose.yaml")["services"], read("prometheus.yaml")
    mounted = {mount.split(":")[1] for service in services.values() for mount in service["volumes"]}
    assert set(prometheus["rule_files"]) <= mounted
    (command,) = services["prometheus"]["command"]
    assert re.findall(r"--config\.file=(\S+)", command)[0] in mounted
    (job,) = prometheus["scrape_configs"]
    assert f"> {job['authorization']['credentials_file']} " in command, "the token is written where it is read"
    ((target,),) = [one["targets"] for one in job["static_configs"]]
    assert target == f"journal:{PORT}" and job["job_name"] == "penstock"
    (source,) = read("grafana/provisioning/datasources/prometheus.yaml")["datasources"]
    assert urlsplit(source["url"]).hostname in services
    (provider,) = read("grafana/provisioning/dashboards/penstock.yaml")["providers"]
    assert f"{provider['options']['path']}/penstock.json" in mounted
    dashboard = json.loads((DEPLOY / "grafana" / "penstock.json").read_text("utf-8"))
    asked = {panel["datasource"]["uid"] for panel in dashboard["panels"] if "datasource" in panel}
    assert asked <= {source["uid"]}


def test_kubernetes_objects_name_each_other() -> None:
    server, worker = manifests("server.yaml"), manifests("worker.yaml")
    for spec in (server["StatefulSet"]["spec"], worker["Deployment"]["spec"]):
        assert spec["selector"]["matchLabels"].items() <= spec["template"]["metadata"]["labels"].items()
    stateful, service = server["StatefulSet"]["spec"], server["Service"]
    assert stateful["serviceName"] == service["metadata"]["name"] and stateful["replicas"] == 1
    assert service["spec"]["selector"].items() <= stateful["template"]["metadata"]["labels"].items()
    pod, own = stateful["template"]["spec"], container("server.yaml", "StatefulSet")
    ports = {port["name"]: port["containerPort"] for port in own["ports"]}
    (offered,) = service["spec"]["ports"]
    assert ports[offered["name"]] == offered["port"] == PORT
    for probe in ("readinessProbe", "livenessProbe"):
        assert own[probe]["httpGet"] == {"path": "/healthz", "port": "http"} and "http" in ports
    volumes = {
        one["name"] for one in [*pod["volumes"], *(made["metadata"] for made in stateful["volumeClaimTemplates"])]
    }
    mounts = {mount["name"]: mount["mountPath"] for mount in own["volumeMounts"]}
    assert set(mounts) == volumes
    assert docker_variables()["PENSTOCK_URL"].startswith(mounts["data"] + "/"), "its root is read-only"
    uid = int(re.findall(r"--uid (\d+)", DOCKERFILE)[0])
    assert pod["securityContext"] == {"runAsNonRoot": True, "runAsUser": uid, "fsGroup": uid}


def test_kubernetes_tokens_are_where_they_are_read() -> None:
    server, worker = manifests("server.yaml"), manifests("worker.yaml")
    own = container("server.yaml", "StatefulSet")
    mounts = {mount["name"]: mount["mountPath"] for mount in own["volumeMounts"]}
    (secret,) = [one["secret"]["secretName"] for one in server["StatefulSet"]["spec"]["template"]["spec"]["volumes"]
                 if "secret" in one]  # fmt: skip
    assert secret == server["Secret"]["metadata"]["name"]
    file = own["args"][own["args"].index("--token-file") + 1]
    folder, _, key = file.rpartition("/")
    assert folder == mounts["tokens"] and key in server["Secret"]["stringData"]
    tokens = read_tokens(server["Secret"]["stringData"][key])
    assert sorted(tokens.values()) == ["admin", "read", "write"]
    variables = {one["name"]: one for one in container("worker.yaml", "Deployment")["env"]}
    place = urlsplit(variables["PENSTOCK_URL"]["value"])
    assert (place.hostname, place.port) == (server["Service"]["metadata"]["name"], PORT)
    reference = variables["PENSTOCK_TOKEN"]["valueFrom"]["secretKeyRef"]
    assert reference["name"] == worker["Secret"]["metadata"]["name"]
    assert tokens[worker["Secret"]["stringData"][reference["key"]]] == "write"


def test_systemd_units_keep_the_store_in_the_folder_they_may_write() -> None:
    served, worker = unit("penstock.service"), unit("penstock-worker@.service")
    for one in (served, worker):
        assert one["Environment"] == "PENSTOCK_URL=/var/lib/penstock/journal.db" and one["User"] == "penstock"
        assert one["ProtectSystem"] == "strict" and one["Restart"] == "always"
    assert served["StateDirectory"] == "penstock" and worker["ReadWritePaths"] == "/var/lib/penstock"
    assert worker["After"] == "penstock.service" and worker["EnvironmentFile"] == "/etc/penstock/%i.env"


def test_systemd_takes_the_units(tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("systemd-analyze is not here: apt-get install systemd")
    for name, as_ in (
        ("penstock.service", "penstock.service"),
        ("penstock-worker@.service", "penstock-worker@emails.service"),
    ):
        text = (DEPLOY / "systemd" / name).read_text("utf-8")
        (tmp_path / as_).write_text(text.replace("/opt/penstock/bin/penstock", "/bin/true"))
        done = subprocess.run(
            [analyze, "verify", "--man=no", tmp_path / as_], capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0 and "Unknown" not in done.stderr, done.stderr
