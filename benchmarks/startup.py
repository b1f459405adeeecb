"""The command with `--once` on an empty queue: from its start to its end, ours and the reference's.

Python or Node, imports, connecting and the look at the schema are all in it.
"""

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.contenders.node import Node
from benchmarks.contenders.ours import COMMAND, Ours
from benchmarks.processes import environment, run
from benchmarks.rounds import Figures, alternated, ratios, summary
from benchmarks.server import Database, Server
from tests.support.node import node_command

OUR_TASK = "async def task(payload): ...\n"
THEIR_TASK = "module.exports = async () => {};\n"


def startup(server: Server, *, rounds: int) -> dict[str, Any]:
    ours, node = Ours(), Node()
    with (
        tempfile.TemporaryDirectory() as folder,
        server.database(ours.kind, ours.install) as our_database,
        server.database(node.kind, node.install) as their_database,
    ):
        tasks = Path(folder) / "tasks"
        tasks.mkdir()
        (tasks / "noop.py").write_text(OUR_TASK)
        (tasks / "noop.js").write_text(THEIR_TASK)
        our_command = [COMMAND, "-c", our_database.url, "--once"]
        their_command = node_command("0.18", their_database.url, "--once")
        measures = {
            "ours": _measure(our_command, our_database, folder),
            "node": _measure(their_command, their_database, folder),
        }
        # The first start also compiles what is imported.
        alternated(measures, 1)
        found = alternated(measures, rounds)
    return {
        "settings": {"rounds": rounds},
        "contenders": {
            each.name: {"label": each.label, **summary(found[each.name])} for each in (ours, node)
        },
        "ratio_of": "seconds",
        "ratios": ratios(found, "ours", "seconds"),
    }


def _measure(command: list[str], database: Database, folder: str) -> Callable[[], Figures]:
    def measure() -> Figures:
        began = time.monotonic()
        run(command, environment(database), folder)
        return {"seconds": time.monotonic() - began}

    return measure
