"""A container without an engine: a namespace of processes, in which a program is process 1."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from tests.support.fork_server import SIBLING_SERVER
from tests.support.processes import Program, Programs, eventually

NAMESPACE = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "--"]


class Container:
    """A program as process 1; all that it started ends with it."""

    def __init__(
        self,
        programs: Programs,
        *command: str,
        variables: Mapping[str, str | None] | None = None,
        wrapped_in: tuple[str, ...] = (),
        **options: Any,
    ) -> None:
        whole = [*NAMESPACE, *wrapped_in, *command]
        self.program: Program = programs.start(whole, variables or {}, **options)
        [self.process_one] = eventually(lambda: children(self.program.pid), "process 1 is there")

    def wait_for_line(self, words: str) -> str:
        """The first line on standard error with these words, once it is there."""
        return self.program.wait_for_line(words)

    def signal(self, number: int) -> None:
        """Send a signal to process 1 only, as a container engine does."""
        os.kill(self.process_one, number)

    def stop(self, number: int) -> int:
        """Send a signal; the exit code of process 1."""
        self.signal(number)
        return self.end()

    def end(self) -> int:
        """The exit code of process 1, once it has ended by itself."""
        return self.program.end()

    @property
    def err(self) -> str:
        return self.program.err

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.program.kill()


def children(pid: int) -> list[int]:
    """The programs of which this one is the parent, those included that only wait for a burial."""
    try:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
        found = [each for task in tasks for each in (task / "children").read_text().split()]
        names = {each: Path(f"/proc/{each}/comm").read_text().strip() for each in found}
    except (FileNotFoundError, ProcessLookupError):
        return []
    return [int(each) for each in found if names[each] != SIBLING_SERVER]
