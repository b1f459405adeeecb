"""Run as process 1 of a container: fork the worker, reap orphans and forward signals.

Orphaned processes become children of process 1 and stay zombies until it waits for them. The worker
itself cannot wait for all children, because its tasks wait for some of them. And a signal without a
handler does not end process 1, so an early signal would be lost.
"""

import os
import signal
import sys
from contextlib import suppress

# Signals that report a fault of this process, or cannot be waited for.
FAULT_SIGNALS = {"SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL", "SIGSYS", "SIGTRAP"}
UNFORWARDED_SIGNALS = {"SIGKILL", "SIGSTOP", *FAULT_SIGNALS}

# The origin of a signal from the kernel. Ctrl-C reaches every process of a terminal this way.
SI_KERNEL = 0x80


def fork_if_pid1() -> None:
    """In process 1, return only in a forked child, and exit with its exit code."""
    if sys.platform != "linux" or os.getpid() != 1:
        return
    handled = {each for each in signal.Signals if each.name not in UNFORWARDED_SIGNALS}
    # Blocked signals stay pending until sigwaitinfo, so none is lost.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, handled)
    worker = os.fork()
    if worker == 0:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return
    os._exit(_wait_for_exit_code(worker, handled))


def _wait_for_exit_code(worker: int, handled: set[signal.Signals]) -> int:
    """Forward signals until the worker exits."""
    while True:
        info = signal.sigwaitinfo(handled)
        if info.si_signo == signal.SIGCHLD:
            code = _reap_children().get(worker)
            if code is not None:
                return code if code >= 0 else 128 - code
        # The kernel sends SIGHUP at the end of a terminal only to process 1.
        elif info.si_code != SI_KERNEL or info.si_signo == signal.SIGHUP:
            os.kill(worker, info.si_signo)


def _reap_children() -> dict[int, int]:
    """Collect the exit codes of all children that have ended."""
    codes = {}
    # Raised when no children are left.
    with suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG)) != (0, 0):
            pid, status = ended
            codes[pid] = os.waitstatus_to_exitcode(status)
    return codes
