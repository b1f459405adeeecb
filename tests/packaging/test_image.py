"""The image: linted, its steps run as they are written, its entry point as process 1."""

import re
import shutil
import signal
import sys
from pathlib import Path

import pytest

from tests.conftest import TestDatabase
from tests.packaging.compose import check_compose_file
from tests.packaging.image import Stage, built, can_be_built, instructions
from tests.support.container import Container, children
from tests.support.processes import READY, Programs
from tests.support.wheel import ROOT, interpreter, run

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(180)]

HADOLINT = str(Path(sys.executable).parent / "hadolint")
TASK = """\
    async def task(payload, ctx):
        ctx.logger.info("Hello, %s", payload["name"])
"""


@pytest.fixture(scope="module")
def context(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What an engine would get of the checkout."""
    folder = tmp_path_factory.mktemp("context")
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    assert lines[1] == "*"
    for name in (line[1:] for line in lines if line.startswith("!")):
        path = ROOT / name
        if path.is_dir():
            shutil.copytree(path, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(path, folder / name)
    return folder


@pytest.fixture(scope="module")
def image(context: Path, tmp_path_factory: pytest.TempPathFactory) -> Stage:
    if not can_be_built(tmp_path_factory.mktemp("trial")):
        pytest.skip("this user may not mount a layer over this machine")
    python = interpreter("3.11")
    if python is None:
        pytest.skip("Python 3.11 is not on this machine")
    return built(ROOT / "Dockerfile", context, tmp_path_factory.mktemp("image"), python)


@pytest.mark.parametrize("file", ["Dockerfile", "tools/compose/Dockerfile"])
def test_the_linter_finds_nothing_in_the_dockerfile(file: str):
    assert run(HADOLINT, str(ROOT / file)) == ""


@pytest.mark.feature("F306")
def test_the_base_image_has_a_version_and_the_newest_python_of_the_matrix():
    bases = [rest for name, rest in instructions(ROOT / "Dockerfile") if name == "FROM"]
    (base,) = (rest for name, rest in instructions(ROOT / "Dockerfile") if name == "ARG")

    assert re.fullmatch(r"BASE=python:3\.14-slim-trixie(@sha256:[0-9a-f]{64})?", base)
    assert bases == ["${BASE} AS build", "${BASE}"]


@pytest.mark.feature("F306", "F307", "F308")
def test_process_1_runs_a_mounted_folder_of_tasks_until_it_gets_a_signal(
    image: Stage, empty_database: TestDatabase, tmp_path: Path
):
    with Programs(tmp_path) as programs:
        mounts = mounted(programs, image)
        image.variables["DATABASE_URL"] = empty_database.url
        # Options as on the command line.
        command = image.inside([*image.entrypoint, "--jobs", "2"], mounts)
        with Container(programs, *command) as container:
            container.wait_for_line(READY)
            assert "'hello'" in container.err
            assert "no ./crontab found" not in container.err
            [worker] = children(container.process_one)
            assert owner(container.process_one) == owner(worker) == 10001
            beside(programs, image, mounts, "add", "hello", '{"name": "Bobby"}')
            container.wait_for_line("Hello, Bobby")
            container.wait_for_line("completed job")

            assert container.stop(signal.SIGTERM) == 0

        settings = beside(programs, image, mounts, "config")
        assert re.search(r"poll_interval +1s +graphile-worker.toml", settings)


def beside(programs: Programs, image: Stage, mounts: dict[Path, str], *arguments: str) -> str:
    """The output of another container of the same image."""
    command = image.inside([*image.entrypoint, *arguments], mounts)
    with Container(programs, *command) as container:
        assert container.end() == 0, container.err
        return container.program.out


def mounted(programs: Programs, image: Stage) -> dict[Path, str]:
    """Tasks, crontab and settings, where the image looks for them."""
    found = {
        programs.write("mine/tasks/hello.py", TASK).parent: "/worker/tasks",
        programs.write("mine/crontab", "0 4 * * * hello\n"): "/worker/crontab",
        programs.write("mine/settings", 'poll_interval = "1s"\n'): "/worker/graphile-worker.toml",
    }
    # As an engine does: what is mounted needs a place.
    for source, target in found.items():
        place = image.layer / target.lstrip("/")
        place.mkdir(exist_ok=True) if source.is_dir() else place.touch()
    return found


def owner(pid: int) -> int:
    return Path(f"/proc/{pid}").stat().st_uid


@pytest.mark.feature("F306")
def test_the_compose_file_of_the_page_is_valid(tmp_path: Path):
    page = (ROOT / "docs/operations/docker.md").read_text()
    (example,) = re.findall(r"^```yaml\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)

    check_compose_file(write(tmp_path / "compose.yaml", example))


def images_of_pages() -> list[tuple[str, str]]:
    """The page and the text of each image that a page shows."""
    block = re.compile(r"^```dockerfile\n(.*?)^```$", re.MULTILINE | re.DOTALL)
    pages = sorted((ROOT / "docs/operations").glob("*.md"))
    return [(page.name, text) for page in pages for text in block.findall(page.read_text())]


IMAGES = images_of_pages()
PAGES = [page for page, _ in IMAGES]


def test_one_page_shows_an_image():
    assert PAGES == ["docker.md"]


@pytest.mark.feature("F306")
@pytest.mark.parametrize("example", [text for _, text in IMAGES], ids=PAGES)
def test_the_linter_finds_nothing_in_an_image_of_a_page(example: str, tmp_path: Path):
    # The person who builds it chooses this.
    ignored = ["--ignore", "DL3006"]

    assert run(HADOLINT, *ignored, str(write(tmp_path / "Dockerfile", example))) == ""


@pytest.mark.feature("F306")
@pytest.mark.parametrize("example", [text for _, text in IMAGES], ids=PAGES)
def test_an_image_of_a_page_installs_as_root_and_runs_as_the_worker(example: str, tmp_path: Path):
    """What it is made from runs as the worker, who may not write to the environment."""
    [(_, worker)] = [each for each in instructions(ROOT / "Dockerfile") if each[0] == "USER"]
    steps = [*instructions(write(tmp_path / "Dockerfile", example))]
    installing = next(n for n, (name, rest) in enumerate(steps) if name == "RUN" and "pip" in rest)

    assert steps.index(("USER", "0")) < installing < steps.index(("USER", worker))


@pytest.mark.feature("F306")
@pytest.mark.parametrize("example", [text for _, text in IMAGES], ids=PAGES)
def test_an_image_of_a_page_keeps_its_app_with_any_arguments(example: str, tmp_path: Path):
    """They take the place of all of CMD."""
    steps = dict(instructions(write(tmp_path / "Dockerfile", example)))

    assert "CMD" not in steps
    assert steps["ENV"].startswith("GRAPHILE_WORKER_APP=shop")


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path
