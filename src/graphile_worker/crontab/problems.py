"""Problems: what is wrong in a crontab is gathered, so that all of it is said at once."""

import re

from graphile_worker.errors import CrontabProblem


class Problems(list[CrontabProblem]):
    """Those of one text; `line` is the one that is read now."""

    def __init__(self, line: int = 1) -> None:
        super().__init__()
        self.line = line

    def note(self, column: int, text: str, expected: str) -> None:
        # Payloads may hold secrets, and messages end up in logs.
        text = re.sub(r"\{.*", "{…}", text, flags=re.DOTALL)
        self.append(CrontabProblem(self.line, column, text, expected))
