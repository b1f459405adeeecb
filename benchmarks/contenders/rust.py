"""Graphile Worker RS, the crate for Rust, as tools/rust builds it: of_rust.rs has its settings."""

from benchmarks.contenders.contender import BATCH, CONCURRENCY
from benchmarks.contenders.ours import SharedSchema
from benchmarks.processes import environment, run
from benchmarks.server import Database
from tests.support.tools import find_missing_rust, rust_program

SETTINGS = {
    "batched": f"concurrency {CONCURRENCY}, local queue {BATCH}, completions batched for 1 ms, "
    "poll interval 10 ms",
    "direct": f"concurrency {CONCURRENCY}",
}


class Rust(SharedSchema):
    """Its local queue and batched completion on, or as it comes."""

    kind = "rust"

    def __init__(self, mode: str = "batched") -> None:
        self._mode = mode
        self.name = "rust" if mode == "batched" else f"rust_{mode}"
        self.label = "Graphile Worker RS 0.14 on Rust"
        self.settings = SETTINGS[mode]
        if mode == "direct":
            # Each of its 24 loops fetches one job and then waits for the poll interval of 1 s.
            self.sample = 200

    def missing(self) -> str | None:
        return find_missing_rust()

    def install(self, database: Database) -> None:
        run(self._program("install"), environment(database))

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
        return [str(rust_program("of_rust")), mode]
