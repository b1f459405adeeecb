"""The notifications that workers receive of added jobs."""

import json
import time

import psycopg

LIMIT_SECONDS = 60.0


class Announcements:
    """A session that listens as a worker does."""

    def __init__(self, dsn: str) -> None:
        self._connection = psycopg.connect(dsn, autocommit=True)
        self._connection.execute('listen "jobs:insert"')
        self._connection.execute('listen "test:end"')

    def wait_for(self, jobs: int) -> list[int]:
        """Wait until this number of jobs is announced; the number of each notification."""
        counts: list[int] = []
        end_at = time.monotonic() + LIMIT_SECONDS
        while sum(counts) < jobs:
            assert time.monotonic() < end_at, f"{counts} of {jobs} jobs were announced"
            for note in self._connection.notifies(timeout=1, stop_after=1):
                counts.append(json.loads(note.payload)["count"])
        return counts

    def read(self) -> list[int]:
        """All that was announced since the last call."""
        # Notifications arrive in the order of commits: nothing older comes after this one.
        self._connection.execute("select pg_notify('test:end', '')")
        counts: list[int] = []
        for note in self._connection.notifies(timeout=LIMIT_SECONDS):
            if note.channel == "test:end":
                return counts
            counts.append(json.loads(note.payload)["count"])
        raise AssertionError("the server sent no notification")

    def wait_quietly(self, seconds: float) -> list[int]:
        """Give announcements that would be wrong the time to arrive."""
        time.sleep(seconds)
        return self.read()

    def close(self) -> None:
        self._connection.close()
