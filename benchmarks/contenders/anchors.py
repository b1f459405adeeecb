"""Where the queues from PyPI are installed, by `benchmarks/setup`."""

import os
from pathlib import Path

TOOLS = Path(os.environ.get("GW_BENCH_TOOLS", "/var/tmp/graphile-worker-bench"))
PYTHON = TOOLS / "bin" / "python"


def missing_anchors() -> str | None:
    return None if PYTHON.exists() else "run benchmarks/setup"


def program(module: str, *words: str) -> list[str]:
    return [str(PYTHON), "-m", f"benchmarks.programs.{module}", *words]
