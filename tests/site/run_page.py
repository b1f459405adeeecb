"""Run the blocks of one page in order: `python tests/site/run_page.py PAGE`."""

import importlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import warnings
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import psycopg

ROOT = Path(__file__).parents[2]

# The folder of the page comes first, as for a reader who types the blocks.
sys.path[:1] = [os.getcwd(), str(ROOT), str(ROOT / "src")]

from tests.support.fork_server import OwnForkServer, is_enabled  # noqa: E402
from tests.support.pages import Block, blocks, split_plain_command  # noqa: E402

# What programs of a page with Django import before they read its settings.
DJANGO = (
    "django.core.management",
    "django.db.backends.postgresql.base",
    "django.test",
    "django.urls",
)


def main() -> None:
    # For the programs of console blocks.
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(ROOT / "src")])
    page = Path(sys.argv[1])
    if "manage.py" in page.read_text():
        for name in DJANGO:
            importlib.import_module(name)
    with OwnForkServer(os.environ) if is_enabled() else nullcontext() as forks:
        warnings.simplefilter("error")
        run_blocks(page, forks)


def run_blocks(page: Path, forks: OwnForkServer | None) -> None:
    # Later python blocks use what earlier ones made, as a reader would.
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for block in blocks(page):
        where = f"{page.name}, line {block.line}"
        match block.kind:
            case _ if block.file is not None:
                block.write()
            case "python":
                exec(compile("\n" * block.line + block.text, str(page), "exec"), namespace)
            case "sql":
                run_sql(block)
            case "console":
                run_console(block, where, forks)


def run_sql(block: Block) -> None:
    with psycopg.connect(os.environ["DATABASE_URL"], autocommit=True) as connection:
        connection.execute(block.text.encode())


# Parts of an output that differ from one run to the next: they may have any value.
VARYING = re.compile(
    r"(?P<id>[0-9a-f]{18})"
    r"|(?P<time>\d{4}-\d\d-\d\d[ T]\d\d:\d\d(?::\d\d(?:\.\d+)?)?(?:Z|[+-]\d\d(?::?\d\d)?)?)"
    r"|(?P<duration>\d+(?:\.\d+)? (?:ms|s|MB|kB|KiB|MiB)\b)"
    r"|(?P<pid>(?<=pid )\d+|(?<=pid=)\d+)"
)


def run_console(block: Block, where: str, forks: OwnForkServer | None) -> None:
    """Run each line that begins with `$ ` and compare what follows with its output.

    The output may come on stdout, stderr or both. In what the page shows, `…` stands for any text
    of a line, and a line of `…` alone for any lines. A command without a shown output must succeed.
    """
    for part in ("\n" + block.text).split("\n$ ")[1:]:
        command, _, expected = part.partition("\n")
        # A command goes on after a backslash at the end of its line.
        while command.endswith("\\"):
            more, _, expected = expected.partition("\n")
            command += "\n" + more.removeprefix("> ")
        done = run_command(command, forks)
        outputs = [done.stdout]
        if expected.strip():
            outputs += [done.stdout + done.stderr, done.stderr + done.stdout]
        matches = any(_matches(expected, output) for output in outputs)
        shown = f"{where}: {command}\n{done.stdout}{done.stderr}"
        assert matches, shown
        assert expected.strip() or done.returncode == 0, shown


def run_command(command: str, forks: OwnForkServer | None) -> subprocess.CompletedProcess[str]:
    """Run a command as a shell does, without a start where that makes no difference."""
    plain = split_plain_command(command, os.environ)
    if forks and plain and forks.suits(plain[1]):
        return run_forked(*plain, forks)
    shell = ["bash", "-eo", "pipefail", "-c", command]
    return subprocess.run(shell, capture_output=True, text=True)


def run_forked(
    words: list[str], environment: dict[str, str], forks: OwnForkServer
) -> subprocess.CompletedProcess[str]:
    if words[0] == "python":
        words = words[1:]
    script = words[0] if words[0].endswith(".py") else shutil.which(words[0])
    assert script is not None
    with tempfile.TemporaryFile("w+") as stdout, tempfile.TemporaryFile("w+") as stderr:
        program = forks.start(
            [script, *words[1:]],
            cwd=Path.cwd(),
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
        )
        code = program.wait()
        for stream in (stdout, stderr):
            stream.seek(0)
        return subprocess.CompletedProcess(words, code, stdout.read(), stderr.read())


def _matches(expected: str, output: str) -> bool:
    pattern = re.escape(_normalize(expected)).replace("…", ".*?")
    # A line of dots alone, and its end, may be absent.
    pattern = re.sub(r"(?m)^\.\*\?\\?\n", r"(?:.*\n)*?", pattern)
    pattern = re.sub(r"(?m)^\.\*\?\Z", r"(?s:.*)", pattern)
    return re.fullmatch(pattern, _normalize(output)) is not None


def _normalize(text: str) -> str:
    lines = [line.rstrip() for line in text.strip().splitlines()]
    return VARYING.sub(lambda part: f"<{part.lastgroup}>", "\n".join(lines))


main()
