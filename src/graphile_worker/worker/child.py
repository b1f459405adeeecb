"""What runs in the process of a task: one job after the other, as a worker asks; no event loop.

It ends, with all that its tasks have started, when the worker does.
"""

import asyncio
import faulthandler
import os
import signal
import socket
import sys
import threading
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from graphile_worker.errors import ConfigurationError
from graphile_worker.jobs import Job
from graphile_worker.memory import MEGABYTE, resident_bytes
from graphile_worker.retries import Discard, PartialFailure, Retry, Snooze
from graphile_worker.tasks import Task
from graphile_worker.tasks.importing import Location
from graphile_worker.tasks.outcomes import ItemErrors
from graphile_worker.tasks.source_only import read_as_source
from graphile_worker.trust import Trust
from graphile_worker.worker import messages
from graphile_worker.worker.messages import Message
from graphile_worker.worker.results import NO_ERRORS, errors_of, refuse_unrun, settled
from graphile_worker.worker.retrying import next_attempt

_is_child = False


def refuse_in_child() -> None:
    """A script that starts a worker when it is imported would start one in each process."""
    if _is_child:
        raise ConfigurationError(
            "a worker starts while a process of its tasks imports this program: put what starts "
            'it under `if __name__ == "__main__":`'
        )


def main(number: int) -> None:
    """Do what is asked through the socket of that number, for ever."""
    global _is_child
    _is_child = True
    line = socket.socket(fileno=number)
    # It is for this process, not for what tasks may start.
    line.set_inheritable(False)
    _tell_of_crashes()
    _set_up(messages.receive(line))
    requests: SimpleQueue[Message] = SimpleQueue()
    threading.Thread(target=_listen, args=(line, requests), daemon=True).start()
    own = os.getpid()
    while True:
        answer = _answer(requests.get())
        if os.getpid() != own:
            # A copy that a task made and let return: it is not the one that was asked.
            os._exit(0)
        sys.stdout.flush()
        line.sendall(messages.packed(answer | _state(answer)))


def _tell_of_crashes() -> None:
    """What ends an interpreter at once is said all the same: where the task stood."""
    if sys.version_info >= (3, 14):
        # Without the stack of C, which would be most of the last words.
        faulthandler.enable(c_stack=False)
    else:
        faulthandler.enable()


def _set_up(given: Message) -> None:
    sys.path[:] = given["path"]
    sys.argv[:] = given["argv"]
    for folder, allow_unsafe in given["tasks_folders"].items():
        read_as_source(Path(folder), Trust(Path(folder), allow_unsafe=allow_unsafe))
    if given["memory_limit"] is not None:
        _limit_memory(given["memory_limit"])
    # Where memory runs out, this is the process to end, not the worker.
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("500")


def _limit_memory(megabytes: int | None) -> None:
    import resource

    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(
        resource.RLIMIT_DATA, (hard if megabytes is None else megabytes * MEGABYTE, hard)
    )


def _listen(line: socket.socket, requests: "SimpleQueue[Message]") -> None:
    with suppress(OSError, EOFError):
        while True:
            requests.put(messages.receive(line))
    # The worker is gone.
    os.killpg(os.getpgrp(), signal.SIGKILL)


def _answer(request: Message) -> Message:
    try:
        return _ended(Location(**request["task"]), Job(*request["job"]))
    except (Snooze, Retry, Discard) as asked:
        return messages.signal_fields(asked)
    except BaseException as error:
        return {"error": messages.error_fields(error), "next": None}


def _ended(location: Location, job: Job) -> Message:
    task = location.find()
    try:
        errors = _run(task, job)
    except (Snooze, Retry, Discard):
        raise
    except BaseException as error:
        if isinstance(error, MemoryError):
            # To tell of it takes some, too.
            _limit_memory(None)
        following = next_attempt(task, job, error)
        return {"error": messages.error_fields(error), "next": messages.next_fields(following)}
    if not errors:
        return {}
    following = next_attempt(task, job, PartialFailure(errors))
    return {
        "items": {at: messages.error_fields(error) for at, error in errors.items()},
        "next": messages.next_fields(following),
    }


def _run(task: Task[..., Any], job: Job) -> ItemErrors:
    args, kwargs = task.signature.call(job.payload, None)
    batch = task.signature.batch(args)
    try:
        result = task.fn(*args, **kwargs)
        if task.is_async:
            result = asyncio.run(_awaited(result))
        refuse_unrun(result)
        return NO_ERRORS if batch is None else batch.errors_in(result)
    except PartialFailure as failure:
        return errors_of(batch, failure)


async def _awaited(result: Any) -> object:
    return await settled(await result)


def _state(answer: Message) -> Message:
    """What the worker wants to know after each job."""
    return {"memory": resident_bytes(os.getpid()), "must_end": _why_to_end(answer)}


def _why_to_end(answer: Message) -> str | None:
    if _has_children():
        return "left processes behind"
    if answer.get("error", {}).get("kind") == MemoryError.__name__:
        return "ran out of memory"
    return None


def _has_children() -> bool:
    """Did a task leave processes behind? Where nobody can say, they end with this one."""
    if not hasattr(os, "waitid"):
        return False
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True
