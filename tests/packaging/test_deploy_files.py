"""The files under deploy/: what they ask for is there, and a worker started as they say serves."""

import os
import re
import shlex
import shutil
import subprocess
from configparser import RawConfigParser
from typing import Any

import pytest
import yaml
from starlette.requests import Request

from graphile_worker import WorkerOptions
from graphile_worker._cli.commands.dashboard import dashboard
from graphile_worker._cli.supervisor.parent_pipe import compute_stop_timeout
from graphile_worker._settings.definitions import SETTINGS
from graphile_worker.contrib.dashboard._security import RequestGuard
from graphile_worker.contrib.dashboard._settings import DashboardSettings
from tests.support.cluster import free_port
from tests.support.health import status
from tests.support.pages import ROOT, blocks
from tests.support.processes import INSTALLED, Programs, eventually

# It is about files, not about versions.
pytestmark = pytest.mark.single_version

DEPLOY = ROOT / "deploy"
UNIT = DEPLOY / "systemd" / "graphile-worker.service"
PAGES = ROOT / "docs" / "operations"

SHOP = """
    from graphile_worker import App

    app = App()

    @app.task
    async def greet() -> None: ...
"""


@pytest.fixture
def programs(programs: Programs) -> Programs:
    """Programs in a folder with an app `shop:app` and a tasks folder."""
    programs.write("shop.py", SHOP)
    programs.write("tasks/greet.py", "async def task(payload): ...")
    return programs


def unit() -> RawConfigParser:
    parser = RawConfigParser()
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read(UNIT)
    return parser


def documents(name: str) -> dict[str, dict[str, Any]]:
    """The objects of a manifest, by their kind."""
    text = (DEPLOY / "kubernetes" / name).read_text(encoding="utf-8")
    return {each["kind"]: each for each in yaml.safe_load_all(text)}


def pod(name: str, kind: str) -> dict[str, Any]:
    found: dict[str, Any] = documents(name)[kind]["spec"]["template"]["spec"]
    return found


def container(name: str, kind: str) -> dict[str, Any]:
    [found] = pod(name, kind)["containers"]
    return dict(found)


UNIT_ARGUMENTS = shlex.split(unit()["Service"]["ExecStart"])[1:]
POD_ARGUMENTS = container("worker.yaml", "Deployment")["args"]
PODS = [
    ("worker.yaml", "Deployment"),
    ("migrate.yaml", "Job"),
    ("exporter.yaml", "Deployment"),
    ("dashboard.yaml", "Deployment"),
]
SECRET_VARIABLES = {"DATABASE_URL", "GRAPHILE_WORKER_DASHBOARD_PASSWORD"}
ARGUMENTS = {"systemd": UNIT_ARGUMENTS, "kubernetes": POD_ARGUMENTS}


# Both


def test_the_pages_show_the_files_as_they_are():
    pages = (PAGES / "permissions-and-security.md", PAGES / "audit.md")
    shown = [block.text for page in pages for block in blocks(page) if block.kind == "sql"]
    systemd, *kubernetes = (
        (PAGES / name).read_text(encoding="utf-8")
        for name in ("systemd.md", "kubernetes.md", "autoscaling.md", "dashboard.md")
    )

    for path in sorted((DEPLOY / "sql").iterdir()):
        assert path.read_text(encoding="utf-8") in shown, path.name
    assert UNIT.read_text(encoding="utf-8") in systemd
    for path in sorted((DEPLOY / "kubernetes").iterdir()):
        # Each file is on one of the pages.
        found = [page for page in kubernetes if path.read_text(encoding="utf-8") in page]
        assert len(found) == 1, path.name


@pytest.mark.parametrize("arguments", ARGUMENTS.values(), ids=ARGUMENTS.keys())
def test_a_worker_with_these_arguments_answers_the_probes_and_ends_well(programs, arguments):
    port = str(free_port())
    at = arguments.index("--health-port") + 1
    worker = programs.worker(*arguments[:at], port, *arguments[at + 1 :])

    probes = {status(port, path) for path in paths()}

    assert paths() == {"/livez", "/readyz"}
    assert probes == {200}
    assert status(port, "/metrics") == 200
    assert worker.stop() == 0


def paths() -> set[str]:
    worker = container("worker.yaml", "Deployment")
    return {
        worker[f"{kind}Probe"]["httpGet"]["path"] for kind in ("startup", "liveness", "readiness")
    }


def test_deploy_files_wait_longer_than_a_graceful_shutdown_takes():
    longest = compute_stop_timeout(WorkerOptions().shutdown_timeout)
    assert longest is not None

    assert int(unit()["Service"]["TimeoutStopSec"]) > longest
    assert pod("worker.yaml", "Deployment")["terminationGracePeriodSeconds"] > longest


def test_deploy_files_contain_no_password():
    for path in DEPLOY.rglob("*"):
        if path.is_file():
            urls = re.findall(r"\w+://[^\s\"]*", path.read_text(encoding="utf-8"))
            assert [url for url in urls if "@" in url or not url.startswith("http")] == []
    for name, kind in PODS:
        variables = container(name, kind)["env"]
        assert variables[0]["name"] == "DATABASE_URL"
        secrets = [each for each in variables if each["name"] != "GRAPHILE_WORKER_HEALTH_HOST"]
        assert {each["name"] for each in secrets} <= SECRET_VARIABLES
        assert all(list(each["valueFrom"]) == ["secretKeyRef"] for each in secrets)
        assert not {"-c", "--connection"} & {*container(name, kind)["args"]}
    assert not {"-c", "--connection"} & {*UNIT_ARGUMENTS}


# systemd


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_accepts_the_unit(tmp_path):
    path = tmp_path / UNIT.name
    # Only that the program is there is looked for, too.
    path.write_text(re.sub(r"ExecStart=\S+", f"ExecStart={INSTALLED}", UNIT.read_text()))

    done = subprocess.run(["systemd-analyze", "verify", str(path)], capture_output=True, text=True)

    assert (done.returncode, done.stderr) == (0, "")


def test_the_unit_restarts_a_worker_except_after_a_permanent_error(programs, sql):
    service = unit()["Service"]
    wrong = programs.run_to_end("--no-such-flag")
    sql.run("insert into :schema.migrations values (999, now(), true)")
    too_new = programs.run_to_end("--app", "shop:app")

    assert service["Restart"] == "always"
    assert service["RestartPreventExitStatus"] == f"{wrong.code} {too_new.code}"
    assert (service["Type"], service["KillSignal"]) == ("exec", "SIGTERM")


SLOW_TO_START = """
    import asyncio
    from contextlib import asynccontextmanager
    from graphile_worker import App

    @asynccontextmanager
    async def lifespan():
        print("waiting", flush=True)
        await asyncio.sleep(60)
        yield

    app = App(lifespan=lifespan)

    @app.task
    async def greet() -> None: ...
"""


def test_a_signal_before_a_worker_is_ready_counts_as_a_clean_exit(programs):
    programs.write("shop.py", SLOW_TO_START)
    worker = programs.command("--app", "shop:app")
    eventually(lambda: "waiting" in worker.out, "the worker is about to start")

    assert str(worker.stop()) == unit()["Service"]["SuccessExitStatus"]


# Kubernetes


def test_a_manifest_names_kind_and_version_of_each_object():
    for path in (DEPLOY / "kubernetes").iterdir():
        for kind, each in documents(path.name).items():
            assert each["apiVersion"]
            assert each["metadata"].keys() & {"name", "generateName"}, kind


def test_the_probes_use_the_health_port_of_the_worker():
    worker = container("worker.yaml", "Deployment")
    [port] = worker["ports"]
    told = worker["args"][worker["args"].index("--health-port") + 1]

    assert str(port["containerPort"]) == told
    for kind in ("startup", "liveness", "readiness"):
        assert worker[f"{kind}Probe"]["httpGet"]["port"] == port["name"]


def test_the_image_and_the_pods_serve_probes_at_all_their_addresses():
    [_, host] = container("worker.yaml", "Deployment")["env"]
    lines = (ROOT / "Dockerfile").read_text(encoding="utf-8").splitlines()

    assert host == {"name": SETTINGS["health_host"].variable, "value": "::"}
    assert f"ENV {host['name']}={host['value']}" in lines


def test_every_flag_of_the_files_is_one_of_the_command():
    known = {flag for setting in SETTINGS.values() for flag in setting.flags}

    for arguments in ARGUMENTS.values():
        assert {each for each in arguments if each.startswith("-")} <= known


def test_the_dashboard_accepts_logins_behind_a_proxy_with_https():
    command, *arguments = container("dashboard.yaml", "Deployment")["args"]
    flags = dashboard.make_context(command, arguments).params
    names = ("allowed_hosts", "forwarded", "trusted_proxies")
    guard = RequestGuard(DashboardSettings(**{name: flags[name] for name in names}))
    headers = {
        "host": "jobs.example.com",
        "origin": "https://jobs.example.com",
        "content-type": "application/json",
        "x-forwarded-proto": "https",
    }
    encoded = [(name.encode(), value.encode()) for name, value in headers.items()]
    request = Request({"type": "http", "client": ("::ffff:10.1.2.3", 1), "headers": encoded})

    guard.check_host(request)
    guard.check_origin(request)


def test_a_pod_runs_with_few_privileges():
    for name, kind in PODS:
        assert pod(name, kind)["securityContext"]["runAsNonRoot"] is True
        assert pod(name, kind)["automountServiceAccountToken"] is False
        rights = container(name, kind)["securityContext"]
        assert rights["readOnlyRootFilesystem"] is True
        assert rights["allowPrivilegeEscalation"] is False
        assert rights["capabilities"] == {"drop": ["ALL"]}


def test_labels_and_selectors_agree():
    found = documents("worker.yaml")
    deployment, budget = found["Deployment"], found["PodDisruptionBudget"]
    labels = deployment["spec"]["template"]["metadata"]["labels"]

    assert deployment["spec"]["selector"]["matchLabels"] == labels
    assert budget["spec"]["selector"]["matchLabels"] == labels


def test_the_migration_job_migrates(tmp_path, empty_database):
    with Programs(tmp_path, DATABASE_URL=empty_database.url) as programs:
        done = programs.run_to_end(*container("migrate.yaml", "Job")["args"])

    assert (done.code, done.out) == (0, "schema graphile_worker is at level 20\n")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount")
def test_tasks_in_a_config_map_are_found(programs, sql):
    """Its files are links into a hidden folder, any user may write to it, and it is read-only."""
    tasks = programs.folder / "mounted"
    programs.write("mounted/..2026/hello.py", "async def task(payload, ctx): print('hello')")
    (tasks / "..data").symlink_to("..2026")
    (tasks / "hello.py").symlink_to("..data/hello.py")
    tasks.chmod(0o777)
    sql.run("select :schema.add_job('hello')")

    mount = 'mount --bind mounted mounted && mount -o remount,bind,ro mounted && exec "$@"'
    command = [INSTALLED, "--tasks", "mounted", "--once"]
    done = programs.start(["unshare", "--mount", "--", "sh", "-c", mount, "sh", *command], {})

    assert done.end() == 0
    assert done.out == "hello\n"
    assert "not trusted" not in done.err
