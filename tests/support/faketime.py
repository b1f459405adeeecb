"""A clock that is wrong: Debian's libfaketime, loaded into a process when it starts."""

from pathlib import Path

import pytest

from tests.support.tools import TOOLS

FOLDER = TOOLS / "faketime" / "usr" / "lib" / "x86_64-linux-gnu" / "faketime"
LIBRARY = FOLDER / "libfaketimeMT.so.1"


class WrongClock:
    """What a process takes for the time of day: off by `+1d` or `-1h`, which may be changed."""

    def __init__(self, file: Path, shift: str) -> None:
        if not LIBRARY.exists():
            pytest.skip("libfaketime is not installed: run tools/faketime")
        self._file = file
        self.set(shift)

    def set(self, shift: str) -> None:
        """The process sees it the next time that it asks what time it is."""
        # In one step, as it may ask at any moment.
        new = self._file.with_name(self._file.name + ".new")
        new.write_text(f"{shift}\n", encoding="utf-8")
        new.replace(self._file)

    @property
    def variables(self) -> dict[str, str]:
        """What the environment of the process needs."""
        return {
            "LD_PRELOAD": str(LIBRARY),
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            "FAKETIME_NO_CACHE": "1",
            # The monotonic clock stays real, because timers and waits use it.
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            # The times of files stay true, and so what was compiled from them stays valid.
            "NO_FAKE_STAT": "1",
        }
