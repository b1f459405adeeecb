"""Debian's Prometheus and promtool, with the files of deploy/prometheus."""

import json
import shutil
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.cluster import free_port
from tests.support.health import status
from tests.support.pages import ROOT
from tests.support.processes import eventually
from tests.support.tools import TOOLS

WAIT_SECONDS = 150.0

BIN = TOOLS / "prometheus" / "usr" / "bin"
FILES = ROOT / "deploy" / "prometheus"


def find_program(name: str) -> str:
    """Return the path of `prometheus` or `promtool`, or skip the test."""
    if not (BIN / name).exists():
        pytest.skip("Prometheus is not installed: run tools/prometheus")
    return str(BIN / name)


def promtool(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [find_program("promtool"), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def read_config(*, workers: Sequence[str], queue: Sequence[str]) -> dict[str, Any]:
    """Return the configuration of deploy/prometheus with these targets.

    Debian builds Prometheus without the discovery of Kubernetes.
    """
    config: dict[str, Any] = yaml.safe_load((FILES / "prometheus.yml").read_text(encoding="utf-8"))
    for job, targets in zip(config["scrape_configs"], (workers, queue), strict=True):
        job.pop("kubernetes_sd_configs", None)
        # Its labels come from Kubernetes.
        job.pop("relabel_configs", None)
        job["static_configs"] = [{"targets": [*targets]}]
    return config


def read_rules() -> dict[str, Any]:
    rules: dict[str, Any] = yaml.safe_load((FILES / "rules.yml").read_text(encoding="utf-8"))
    return rules


class Prometheus:
    """A server that a test has started."""

    def __init__(self, port: int, log: Path) -> None:
        self.port = port
        self.log = log

    def get(self, path: str, **parameters: str) -> Any:
        """Return `data` of the answer of the API."""
        query = urllib.parse.urlencode(parameters)
        url = f"http://127.0.0.1:{self.port}/api/v1/{path}?{query}"
        try:
            with urllib.request.urlopen(url, timeout=10) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            with error:
                raise AssertionError(json.load(error)["error"]) from None

    def query(self, expression: str) -> list[tuple[dict[str, str], float]]:
        """Return the current samples of an expression."""
        found = self.get("query", query=expression)["result"]
        return [(each["metric"], float(each["value"][1])) for each in found]

    def value(self, expression: str) -> float | None:
        """Return the value of the only sample, or None without one."""
        found = self.query(expression)
        assert len(found) < 2, found
        return found[0][1] if found else None

    def wait_for(self, look: Callable[[], bool], what: str) -> None:
        """Wait for a condition, which changes once per scrape.

        On a busy machine, an exporter pauses for up to a minute after a look at the database.
        """

        def look_slowly() -> bool:
            time.sleep(0.25)
            return look()

        eventually(look_slowly, what, within=WAIT_SECONDS)

    def list_firing(self) -> dict[str, dict[str, Any]]:
        """Return the alerts that fire, by their names."""
        alerts = self.get("alerts")["alerts"]
        return {each["labels"]["alertname"]: each for each in alerts if each["state"] == "firing"}


@contextmanager
def run_prometheus(
    folder: Path, config: dict[str, Any], rules: dict[str, Any]
) -> Iterator[Prometheus]:
    """Run a server, and end it with the block."""
    program, port = find_program("prometheus"), free_port()
    folder.mkdir(exist_ok=True)
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config), encoding="utf-8")
    (folder / "rules.yml").write_text(yaml.safe_dump(rules), encoding="utf-8")
    server = Prometheus(port, folder / "log.txt")
    command = [
        program,
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--log.level=warn",
    ]
    with server.log.open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder)
    try:
        eventually(lambda: process.poll() is not None or _is_ready(port), "Prometheus answers")
        assert process.poll() is None, server.log.read_text()
        yield server
    finally:
        process.terminate()
        process.wait(timeout=20)
        shutil.rmtree(folder / "data", ignore_errors=True)


def _is_ready(port: int) -> bool:
    try:
        return status(port, "/-/ready") == 200
    except OSError:
        return False
