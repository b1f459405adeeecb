"""Compose files by their specification, whose schema the checker brings along."""

import sys
from pathlib import Path

from tests.support.wheel import run

CHECK = str(Path(sys.executable).parent / "check-jsonschema")


def check_compose_file(path: Path) -> None:
    run(CHECK, "--builtin-schema", "vendor.compose-spec", str(path))
