"""Django from nothing: the built wheel, `startproject` and the lines of the page."""

from pathlib import Path

import pytest

from tests.conftest import TestDatabase
from tests.support.cluster import Cluster
from tests.support.pages import blocks
from tests.support.processes import Programs
from tests.support.wheel import ROOT, clean_environment, interpreter

PAGE = ROOT / "docs/get-started/django.md"
# The first block of each is what the page writes before a worker can run.
FILES = ["acme/settings.py", "shop/tasks.py"]
VERSIONS = {"5.2": "3.11", "6.0": "3.12", "6.1": "newest"}
ENQUEUE = "from shop.tasks import send_receipt; send_receipt.enqueue('ada@example.com', 7)"


@pytest.mark.nightly
@pytest.mark.timeout(300)
@pytest.mark.parametrize("django", VERSIONS)
def test_a_new_project_runs_a_job(django: str, wheel: Path, cluster: Cluster, tmp_path: Path):
    python = interpreter(VERSIONS[django])
    if python is None:
        pytest.skip(f"Python {VERSIONS[django]} is not on this machine")
    name = f"acme_{django.replace('.', '_')}"
    cluster.create_database(name)
    database = TestDatabase(name, cluster, "graphile_worker")
    folder = tmp_path / "project"
    folder.mkdir()
    run = clean_environment(
        tmp_path / "env", python, f"{wheel}[django]", f"django=={django}.*", "psycopg[binary]"
    )
    # The page names the database only, so libpq finds the server. No DATABASE_URL.
    libpq = {"PGHOST": "127.0.0.1", "PGPORT": str(cluster.port), "PGUSER": "postgres"}
    with Programs(folder, **libpq) as programs:

        def type_line(*command: str) -> str:
            program = programs.start([str(run), *command], {"DATABASE_URL": None})
            assert program.end(within=120) == 0, (command, program.out + program.err)
            return program.out + program.err

        type_line("-m", "django", "startproject", "acme", ".")
        type_line("manage.py", "startapp", "shop")
        for name in FILES:
            text = next(block.text for block in blocks(PAGE) if block.file == name)
            with (folder / name).open("a") as file:
                file.write(text.replace('"acme"', f'"{database.name}"'))
        assert "graphile_worker.0001_initial... OK" in type_line("manage.py", "migrate")
        type_line("manage.py", "shell", "-c", ENQUEUE)
        said = type_line("manage.py", "graphile_worker", "--once")
        assert "receipt of order 7 to ada@example.com" in said
