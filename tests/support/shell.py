"""Call the entry point of the command in this process, and capture its output."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from graphile_worker._cli.main import main
from tests.conftest import TestDatabase


@dataclass(frozen=True)
class CommandResult:
    """How the command ended, and what it wrote where."""

    code: int
    out: str
    err: str


class Shell:
    """Calls the command in an empty folder; the environment names the test's database."""

    def __init__(
        self,
        database: TestDatabase,
        folder: Path,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        monkeypatch.chdir(folder)
        monkeypatch.setenv("DATABASE_URL", database.url)
        monkeypatch.setenv("GRAPHILE_WORKER_SCHEMA", database.schema)
        self._patch = monkeypatch
        self._capsys = capsys

    def __call__(self, *arguments: Any) -> CommandResult:
        self._patch.setattr(sys, "argv", ["graphile-worker", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        caught = self._capsys.readouterr()
        code = ended.value.code
        return CommandResult(code if isinstance(code, int) else 0, caught.out, caught.err)
