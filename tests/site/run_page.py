"""Run the blocks of one page in order: `python tests/site/run_page.py PAGE`."""

import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import psycopg

ROOT = Path(__file__).parents[2]

# The folder of the page comes first, as for a reader who types the blocks.
sys.path[:1] = [os.getcwd(), str(ROOT), str(ROOT / "src")]

from tests.support.pages import Block, blocks  # noqa: E402


def main() -> None:
    warnings.simplefilter("error")
    # For the programs of console blocks.
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(ROOT / "src")])
    page = Path(sys.argv[1])
    # Later python blocks use what earlier ones made, as a reader would.
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for block in blocks(page):
        where = f"{page.name}, line {block.line}"
        match block.kind:
            case "python":
                exec(compile("\n" * block.line + block.text, str(page), "exec"), namespace)
            case "sql":
                run_sql(block)
            case "console":
                run_console(block, where)


def run_sql(block: Block) -> None:
    with psycopg.connect(os.environ["DATABASE_URL"], autocommit=True) as connection:
        connection.execute(block.text.encode())


def run_console(block: Block, where: str) -> None:
    """Each line that begins with `$ ` is a command; what follows is what it must print."""
    for part in ("\n" + block.text).split("\n$ ")[1:]:
        command, _, expected = part.partition("\n")
        shell = ["bash", "-eo", "pipefail", "-c", command]
        done = subprocess.run(shell, capture_output=True, text=True)
        assert done.returncode == 0, f"{where}: {command}\n{done.stderr}"
        assert done.stdout.strip() == expected.strip(), f"{where}: {command}\n{done.stdout}"


main()
