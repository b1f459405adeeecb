"""What a worker process sends to its supervisor, through a socket."""

import asyncio
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from graphile_worker._cli.queue_endpoints import QueueLocation
from graphile_worker._cli.supervisor.process_metrics import MetricsSender, ProcessMetrics
from graphile_worker._db.conninfo import ConninfoSource
from graphile_worker._sql.identifiers import Schemas
from tests.support.recorder import wait_until

SCHEMAS = Schemas.from_names("graphile_worker")


@contextmanager
def sending(conninfo: ConninfoSource) -> Iterator[ProcessMetrics]:
    """Send without a pause, and yield what the supervisor receives."""
    ours, theirs = socket.socketpair()
    received = ProcessMetrics()
    receiver = received.add(ours)
    sender = MetricsSender(
        os.dup(theirs.fileno()),
        dict,
        QueueLocation(conninfo, SCHEMAS),
        send_interval_seconds=0.001,
        location_interval_seconds=0.0,
    )
    theirs.close()
    yield received
    sender.close()
    sender._socket.close()
    receiver.close()


def has(metrics: ProcessMetrics, conninfo: str) -> Callable[[], bool]:
    return lambda: metrics.queue_location == QueueLocation(conninfo, SCHEMAS)


async def test_a_process_sends_its_connection_string_again_if_a_function_returns_it(caplog):
    answers: list[str | Exception] = ["first", LookupError("no token"), "second"]

    def issue() -> str:
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    with sending(issue) as received:
        await wait_until(has(received, "second"))

    assert caplog.messages == [
        "database not sent to the parent: OperationalError: the function for the connection string "
        "raised LookupError: no token"
    ]


async def test_a_string_is_sent_once():
    with sending("shop") as received:
        await wait_until(has(received, "shop"))
        received.queue_location = None
        await asyncio.sleep(0.05)
        assert received.queue_location is None
