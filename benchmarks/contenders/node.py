"""The reference: npm graphile-worker 0.18.0 on the Node of the test tools."""

from benchmarks.contenders.contender import BATCH, CONCURRENCY
from benchmarks.contenders.ours import SharedSchema
from benchmarks.processes import ROOT
from benchmarks.server import Database
from tests.support.node import node_install
from tests.support.tools import MODULES, NODE

PACKAGE = MODULES / "gw018"
PROGRAM = ROOT / "benchmarks" / "programs" / "of_node.cjs"
SETTINGS = {
    "batched": f"concurrency {CONCURRENCY}, local queue {BATCH}, completeJobBatchDelay 0",
    "direct": f"concurrency {CONCURRENCY}",
}


class Node(SharedSchema):
    """Its local queue and batched completion on, or as it comes."""

    kind = "node"

    def __init__(self, mode: str = "batched") -> None:
        self._mode = mode
        self.name = "node" if mode == "batched" else f"node_{mode}"
        self.label = "Graphile Worker 0.18 on Node"
        self.settings = SETTINGS[mode]

    def missing(self) -> str | None:
        return None if NODE.exists() else "run tools/setup"

    def install(self, database: Database) -> None:
        node_install(database.url)

    def working(self) -> list[str]:
        return self._program(self._mode)

    def pinged(self) -> list[str]:
        # Single jobs gain nothing from batches.
        return self._program("direct")

    def pinger(self) -> list[str]:
        return self._program("ping")

    def adding(self) -> list[str]:
        return self._program("add")

    def _program(self, mode: str) -> list[str]:
        return [str(NODE), str(PROGRAM), str(PACKAGE), mode]
