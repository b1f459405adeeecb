"""A real terminal for tests: a detached session of tmux."""

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

# On a busy machine snapshots are rare.
TIMEOUT_SECONDS = 90.0

# A screen that stays the same for this time is drawn completely.
STABLE_SECONDS = 0.1


class Tmux:
    """A terminal with a program in it, which shows the exit code at the end."""

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
        # A separate server for each terminal.
        self._socket = tempfile.mktemp(prefix="tmux-", dir=folder)
        self._environment = {**environment, **_libraries(), "TERM": "xterm-256color"}
        settings = folder / "tmux.conf"
        settings.write_text("set -g status off\n")
        # Ctrl-C must reach the program, not the shell around it.
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
        """The text of each row."""
        text = self._run("capture-pane", "-p", "-t", "screen")
        return text.removesuffix("\n").split("\n")

    @property
    def colored_text(self) -> str:
        """The text with its SGR codes."""
        return self._run("capture-pane", "-p", "-e", "-t", "screen")

    def screen(self) -> list[str]:
        """Wait until the screen is drawn, and return its rows."""

        def read() -> list[str] | None:
            before = self.lines
            time.sleep(STABLE_SECONDS)
            return before if before == self.lines else None

        found = eventually(read, "the screen no longer changes")
        assert found is not None
        return found

    def wait_for_text(self, text: str, within: float = TIMEOUT_SECONDS) -> list[str]:
        """Wait until a text is on the screen, and return its rows."""
        try:
            eventually(lambda: any(text in line for line in self.lines), text, within)
        except AssertionError:
            raise AssertionError(f"{text!r} is not on\n" + "\n".join(self.lines)) from None
        return self.screen()

    def press(self, *keys: str) -> None:
        self._run("send-keys", "-t", "screen", *keys)

    def resize(self, columns: int, rows: int) -> None:
        self._run("resize-window", "-t", "screen", "-x", str(columns), "-y", str(rows))

    def state(self) -> str:
        """Whether the alternate screen, the cursor and wrapping are on; `0 1 1` by default."""
        output = self._run(
            "display", "-p", "-t", "screen", "#{alternate_on} #{cursor_flag} #{wrap_flag}"
        )
        return output.strip()

    @property
    def title(self) -> str:
        """The title that the program has set."""
        return self._ask("#{pane_title}")

    @property
    def terminal(self) -> str:
        """The terminal device of the program."""
        return self._ask("#{pane_tty}")

    @property
    def pid(self) -> int:
        """The process id of the program, which is a child of the shell."""
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
        # Otherwise tmux assumes that the terminal only knows ASCII.
        "LC_ALL": "C.UTF-8",
    }
