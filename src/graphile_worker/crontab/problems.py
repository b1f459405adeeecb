"""Problems of a crontab, collected to report all of them at once."""

import logging
import re

from graphile_worker.errors import CrontabProblem

logger = logging.getLogger("graphile_worker")


class Problems(list[CrontabProblem]):
    """The problems of one text. `line` is the line that is being parsed."""

    def __init__(self, line: int = 1) -> None:
        super().__init__()
        self.line = line
        self._warnings: list[tuple[int, int, str, str]] = []

    def record(self, column: int, text: str, expected: str) -> None:
        # Payloads may contain secrets, and messages are logged.
        text = re.sub(r"\{.*", "{…}", text, flags=re.DOTALL)
        self.append(CrontabProblem(self.line, column, text, expected))

    def record_warning(self, column: int, text: str, meaning: str) -> None:
        """Record something valid that is probably a mistake."""
        self._warnings.append((self.line, column, text, meaning))

    def log_warnings(self, source: str) -> None:
        """Log the warnings of a text without problems."""
        for line, column, text, meaning in self._warnings:
            logger.warning(
                "%s: line %s, column %s: %s means %s", source, line, column, text, meaning
            )
