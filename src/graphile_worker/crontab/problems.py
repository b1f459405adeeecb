"""Problems: what is wrong in a crontab is gathered, so that all of it is said at once."""

import logging
import re

from graphile_worker.errors import CrontabProblem

logger = logging.getLogger("graphile_worker")


class Problems(list[CrontabProblem]):
    """Those of one text; `line` is the one that is read now."""

    def __init__(self, line: int = 1) -> None:
        super().__init__()
        self.line = line
        self._warnings: list[tuple[int, int, str, str]] = []

    def record(self, column: int, text: str, expected: str) -> None:
        # Payloads may hold secrets, and messages end up in logs.
        text = re.sub(r"\{.*", "{…}", text, flags=re.DOTALL)
        self.append(CrontabProblem(self.line, column, text, expected))

    def record_warning(self, column: int, text: str, meaning: str) -> None:
        """What is allowed, and hardly meant like that."""
        self._warnings.append((self.line, column, text, meaning))

    def log_warnings(self, source: str) -> None:
        """Log what is doubtful about a text without problems."""
        for line, column, text, meaning in self._warnings:
            logger.warning(
                "%s: line %s, column %s: %s means %s", source, line, column, text, meaning
            )
