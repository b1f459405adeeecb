"""A terminal that can be looked at: tmux, without anybody at it."""

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Self

import pytest

from tests.support.processes import eventually
from tests.support.tools import TOOLS

FOLDER = TOOLS / "tmux"
LIBRARIES = [FOLDER / part / "x86_64-linux-gnu" for part in ("usr/lib", "lib")]
TERMINFO = ["/etc/terminfo", "/lib/terminfo", "/usr/share/terminfo", str(FOLDER / "lib/terminfo")]

# Seconds: on a busy machine looks are seldom.
TIMEOUT_SECONDS = 90.0

# Seconds in which a screen must stay the same to count as drawn.
STABLE_SECONDS = 0.1


class Tmux:
    """One terminal of a size with a program in it; when that ends, its exit code is shown."""

    def __init__(
        self,
        folder: Path,
        command: str,
        environment: Mapping[str, str],
        *,
        columns: int,
        rows: int,
    ) -> None:
        self._program = _program()
        # A server for each, in a place of its own.
        self._socket = tempfile.mktemp(prefix="tmux-", dir=folder)
        self._environment = {**environment, **_libraries(), "TERM": "xterm-256color"}
        settings = folder / "tmux.conf"
        settings.write_text("set -g status off\n")
        # Ctrl-C is for the program, not for the shell around it.
        shown = f"trap : INT; {command}; echo ended $?; exec sleep 1000"
        size = ["-x", str(columns), "-y", str(rows)]
        new = ["-f", str(settings), "new-session", "-d", "-s", "screen", *size]
        self._run(*new, "-c", str(folder), "sh", "-c", shown)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._run("kill-server")

    @property
    def lines(self) -> list[str]:
        """What is to be seen right now, one text for each row."""
        text = self._run("capture-pane", "-p", "-t", "screen")
        return text.removesuffix("\n").split("\n")

    @property
    def colours(self) -> str:
        """The same with what says how it looks."""
        return self._run("capture-pane", "-p", "-e", "-t", "screen")

    def screen(self) -> list[str]:
        """What is to be seen once it is drawn: nothing of it changed for a moment."""

        def look() -> list[str] | None:
            before = self.lines
            time.sleep(STABLE_SECONDS)
            return before if before == self.lines else None

        found = eventually(look, "the screen stands still")
        assert found is not None
        return found

    def wait_for_text(self, words: str, within: float = TIMEOUT_SECONDS) -> list[str]:
        """The screen, once these words are to be seen on it."""
        try:
            eventually(lambda: any(words in line for line in self.lines), words, within)
        except AssertionError:
            raise AssertionError(f"{words!r} is not on\n" + "\n".join(self.lines)) from None
        return self.screen()

    def press(self, *keys: str) -> None:
        self._run("send-keys", "-t", "screen", *keys)

    def resize(self, columns: int, rows: int) -> None:
        self._run("resize-window", "-t", "screen", "-x", str(columns), "-y", str(rows))

    def state(self) -> str:
        """Is the alternate screen shown, is there a cursor, do lines wrap? `0 1 1` as always."""
        said = self._run(
            "display", "-p", "-t", "screen", "#{alternate_on} #{cursor_flag} #{wrap_flag}"
        )
        return said.strip()

    @property
    def title(self) -> str:
        """What the program has set as the title of its terminal."""
        return self._ask("#{pane_title}")

    @property
    def terminal(self) -> str:
        """The device that the program has for its terminal."""
        return self._ask("#{pane_tty}")

    @property
    def pid(self) -> int:
        """The process of the program, below the shell."""
        shell = self._ask("#{pane_pid}")
        children = Path(f"/proc/{shell}/task/{shell}/children")
        return int(eventually(lambda: children.read_text().split(), "the program runs")[0])

    def _ask(self, what: str) -> str:
        return self._run("display", "-p", "-t", "screen", what).strip()

    def _run(self, *arguments: str) -> str:
        command = [self._program, "-S", self._socket, *arguments]
        done = subprocess.run(command, env=self._environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout


def _program() -> str:
    found = shutil.which("tmux") or str(FOLDER / "usr" / "bin" / "tmux")
    if not os.access(found, os.X_OK):
        pytest.skip("tmux is not installed: run tools/tmux")
    return found


def _libraries() -> dict[str, str]:
    if shutil.which("tmux"):
        return {}
    return {
        "LD_LIBRARY_PATH": ":".join(map(str, LIBRARIES)),
        "TERMINFO_DIRS": ":".join(TERMINFO),
        # Without it, it would take every terminal for one that knows ASCII only.
        "LC_ALL": "C.UTF-8",
    }
