"""Process 1, as a container has it: the worker gets a parent that does what only process 1 can.

Orphans become its children, and stay in the table of processes until it asks how they ended. The
worker must not ask: it would hear of programs for which its tasks wait. And a signal that nobody
handles does not end process 1, so it would outlive one that comes early.
"""

import os
import signal
import sys
from contextlib import suppress

# What tells of a mistake of this very process, or cannot be waited for.
UNFORWARDED_SIGNALS = {
    "SIGKILL",
    "SIGSTOP",
    "SIGSEGV",
    "SIGBUS",
    "SIGFPE",
    "SIGILL",
    "SIGSYS",
    "SIGTRAP",
}
# In siginfo: the kernel sent it, as it does to all on the terminal when someone presses Ctrl-C.
SI_KERNEL = 0x80


def fork_if_pid1() -> None:
    """Go on in a child, if this is process 1; that one stays, and ends with the child's code."""
    if sys.platform != "linux" or os.getpid() != 1:
        return
    awaited = {each for each in signal.Signals if each.name not in UNFORWARDED_SIGNALS}
    # From here on none is lost: they wait until somebody asks.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, awaited)
    worker = os.fork()
    if worker == 0:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return
    os._exit(_wait_for_exit_code(worker, awaited))


def _wait_for_exit_code(worker: int, handled: set[signal.Signals]) -> int:
    """The exit code of the worker, once it has ended; until then it gets the signals."""
    while True:
        heard = signal.sigwaitinfo(handled)
        if heard.si_signo == signal.SIGCHLD:
            code = _reap_children().get(worker)
            if code is not None:
                return code if code >= 0 else 128 - code
        # But for the end of the terminal, of which the kernel tells nobody else.
        elif heard.si_code != SI_KERNEL or heard.si_signo == signal.SIGHUP:
            os.kill(worker, heard.si_signo)


def _reap_children() -> dict[int, int]:
    """The exit codes of all children that have ended, which are thereby forgotten."""
    codes = {}
    # Raised when none is left, not even one that still runs.
    with suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG)) != (0, 0):
            pid, status = ended
            codes[pid] = os.waitstatus_to_exitcode(status)
    return codes
