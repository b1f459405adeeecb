"""The program of a task process: runs the jobs that its worker sends, without an event loop.

When the worker ends, it ends too, with all processes that its tasks started.
"""

import asyncio
import faulthandler
import os
import signal
import socket
import sys
import threading
from contextlib import suppress
from contextvars import copy_context
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from graphile_worker._support.rss import MEGABYTE, read_resident_bytes
from graphile_worker._support.trust import TrustChecker
from graphile_worker._worker import process_protocol
from graphile_worker._worker.call_results import (
    NO_ERRORS,
    await_item_results,
    encode_result,
    get_item_errors,
    is_unstorable_result,
    reject_unawaited,
)
from graphile_worker._worker.process_protocol import Message
from graphile_worker._worker.retry_decision import (
    DEFAULT_BACKOFF,
    NextAttempt,
    decide_next_attempt,
)
from graphile_worker.errors import ConfigurationError
from graphile_worker.events import RunningJob
from graphile_worker.hooks import Hooks
from graphile_worker.jobs import Job
from graphile_worker.retries import Discard, PartialFailure, Retry, Snooze
from graphile_worker.tasks import Task
from graphile_worker.tasks.batch_results import ItemErrors
from graphile_worker.tasks.importing import TaskLocation, import_module
from graphile_worker.tasks.source_only import register_source_folder

_is_task_process = False


def reject_in_task_process() -> None:
    """Raise ConfigurationError if a script starts a worker while a task process imports it."""
    if _is_task_process:
        raise ConfigurationError(
            "a task process started a worker while it imported this program. Start the worker "
            'under `if __name__ == "__main__":`.'
        )


def main(socket_fd: int, liveness_fd: int) -> None:
    """Run the jobs that come through the socket.

    Args:
        socket_fd: The socket.
        liveness_fd: The read end of a pipe that closes when the worker ends.
    """
    global _is_task_process
    _is_task_process = True
    _end_with_worker(liveness_fd)
    sock = socket.socket(fileno=socket_fd)
    # Child processes of tasks must not keep it open.
    sock.set_inheritable(False)
    _enable_crash_tracebacks()
    _set_up(process_protocol.receive_message(sock))
    requests: SimpleQueue[Message] = SimpleQueue()
    threading.Thread(target=_read_requests, args=(sock, requests), daemon=True).start()
    own_pid = os.getpid()
    while True:
        # No job sees what another one set in context variables, for example a language.
        response = copy_context().run(_handle_request, requests.get())
        if os.getpid() != own_pid:
            # A task forked, and this is the child.
            os._exit(0)
        sys.stdout.flush()
        sock.sendall(process_protocol.encode_message(response | _read_process_state(response)))


def _end_with_worker(liveness_fd: int) -> None:
    """Let the kernel kill this process and those of its tasks when the pipe closes.

    A task may keep the thread that reads the socket from running: a search with a regular
    expression holds Python's lock until it has ended. Elsewhere than on Linux, only that thread
    notices the end of the worker.
    """
    os.set_inheritable(liveness_fd, False)
    if sys.platform == "linux":
        import fcntl

        fcntl.fcntl(liveness_fd, fcntl.F_SETOWN, -os.getpgrp())
        fcntl.fcntl(liveness_fd, fcntl.F_SETSIG, signal.SIGKILL)
        flags = fcntl.fcntl(liveness_fd, fcntl.F_GETFL)
        fcntl.fcntl(liveness_fd, fcntl.F_SETFL, flags | os.O_ASYNC)


def _enable_crash_tracebacks() -> None:
    """Print the traceback of a task that crashes the interpreter."""
    if sys.version_info >= (3, 14):
        # Without the C stack, which would fill most of the lines that the worker keeps.
        faulthandler.enable(c_stack=False)
    else:
        faulthandler.enable()


def _set_up(settings: Message) -> None:
    sys.path[:] = settings["path"]
    sys.argv[:] = settings["argv"]
    for folder, allow_unsafe in settings["tasks_folders"].items():
        register_source_folder(Path(folder), TrustChecker(Path(folder), allow_unsafe=allow_unsafe))
    if settings["memory_limit"] is not None:
        _limit_memory(settings["memory_limit"])
    # If memory runs out, the kernel should kill this process, not the worker.
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("500")


def _limit_memory(megabytes: int | None) -> None:
    import resource

    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(
        resource.RLIMIT_DATA, (hard if megabytes is None else megabytes * MEGABYTE, hard)
    )


def _read_requests(sock: socket.socket, requests: "SimpleQueue[Message]") -> None:
    with suppress(OSError, EOFError):
        while True:
            requests.put(process_protocol.receive_message(sock))
    # The worker has ended.
    os.killpg(os.getpgrp(), signal.SIGKILL)


def _handle_request(request: Message) -> Message:
    try:
        operation = RunningJob(
            pool_id=request["pool_id"],
            worker_id=request["worker_id"],
            job=Job(*request["job"]),
            runs_in="process",
            is_task_process=True,
        )
        if request["first_module"] is not None:
            import_module(request["first_module"])
        return _run_task(TaskLocation(**request["task"]), operation, request["keeps_result"])
    except (Snooze, Retry, Discard) as exception:
        return _encode_outcome_exception(exception)
    except BaseException as error:
        return {"error": process_protocol.encode_error(error), "next": None}


def _encode_outcome_exception(exception: Snooze | Retry | Discard) -> Message:
    try:
        return process_protocol.encode_outcome_exception(exception)
    except Exception as broken:
        # The exception is invalid, for example a subclass of Retry that has no delay.
        return {
            "error": process_protocol.encode_error(broken),
            "next": process_protocol.encode_next_attempt(DEFAULT_BACKOFF),
        }


def _run_task(location: TaskLocation, operation: RunningJob, keeps_result: bool) -> Message:
    task, job = location.load(), operation.job
    try:
        errors, result = _call_task(task, operation)
        response = {"result": encode_result(result)} if keeps_result and not errors else {}
    except (Snooze, Retry, Discard):
        raise
    except BaseException as error:
        if isinstance(error, MemoryError):
            # The response needs memory, too.
            _limit_memory(None)
        next_attempt = (
            NextAttempt(None, is_permanent=True)
            if is_unstorable_result(error)
            else decide_next_attempt(task, job, error)
        )
        return {
            "error": process_protocol.encode_error(error),
            "next": process_protocol.encode_next_attempt(next_attempt),
        }
    if not errors:
        return response
    next_attempt = decide_next_attempt(task, job, PartialFailure(errors))
    return {
        "items": {index: process_protocol.encode_error(error) for index, error in errors.items()},
        "next": process_protocol.encode_next_attempt(next_attempt),
    }


def _get_hooks(task: Task[..., Any]) -> Hooks:
    """Return the hooks of the app that has the task."""
    try:
        app = task._find_enqueuer()
    except ConfigurationError:
        # A task of a router that no app includes in this process.
        return Hooks()
    hooks = getattr(app, "hooks", None)
    return hooks if isinstance(hooks, Hooks) else Hooks()


def _call_task(task: Task[..., Any], operation: RunningJob) -> tuple[ItemErrors, object]:
    """Return the errors of the items of a batch, and the result of any other task."""
    args, kwargs = task.signature.build_call_arguments(operation.job.payload, None)
    batch = task.signature.get_batch(args)
    # Stays None if a wrapper suppresses an error.
    result = None
    try:
        with _get_hooks(task).around_sync_only(operation):
            result = task.fn(*args, **kwargs)
            if task.is_async:
                result = asyncio.run(_await_result(result))
            reject_unawaited(result)
        return (NO_ERRORS, result) if batch is None else (batch.read_result(result), None)
    except PartialFailure as failure:
        return get_item_errors(batch, failure), None


async def _await_result(result: Any) -> object:
    return await await_item_results(await result)


def _read_process_state(response: Message) -> Message:
    """Return the state of this process, which the worker checks after each job."""
    return {"memory": read_resident_bytes(os.getpid()), "must_end": _find_end_reason(response)}


def _find_end_reason(response: Message) -> str | None:
    if _has_child_processes():
        return "left processes behind"
    if response.get("error", {}).get("kind") == MemoryError.__name__:
        return "ran out of memory"
    return None


def _has_child_processes() -> bool:
    """Return whether a task left processes behind.

    False on systems without `waitid`, where those processes end with this one.
    """
    if not hasattr(os, "waitid"):
        return False
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True
