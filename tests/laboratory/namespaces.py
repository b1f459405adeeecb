"""A network namespace for a program, with one virtual cable to what listens for it.

Only what is made here is ever touched. The outer end of the cable has a namespace, too, so that the
interfaces of the machine stay as they are: when they change, Chromium ends all its requests, and
other tests fail. A server is reached through something that listens at the outer end, for example
`Proxy(cluster.port, namespace.listen())`.
"""

import ctypes
import itertools
import os
import random
import shutil
import socket
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Self

import pytest

# Addresses for tests between networks (RFC 2544), which no router forwards.
NETWORK = "198.18"

# No interface has this address, so packets to it are lost.
UNUSED_ADDRESS = "02:00:00:00:00:01"

# Where iproute2 keeps a file for each namespace.
NAMESPACES = Path("/run/netns")

# From sched.h: a thread enters a network namespace.
CLONE_NEWNET = 0x40000000

_numbers = itertools.count(1)


class Namespace:
    """A namespace with one virtual cable; skips the test where the machine does not allow it."""

    def __init__(self) -> None:
        self.name = _new_name()
        self.outside, self.address = _choose_addresses()
        """Addresses of the outer end, where servers listen, and of the program."""
        # Each end of the cable has the name of its namespace.
        self._outer, self._inner = f"{self.name}o", self.name

    def __enter__(self) -> Self:
        reason = why_not()
        if reason:
            pytest.skip(reason)
        try:
            self._make()
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self._remove()

    def inside(self, command: Sequence[str]) -> list[str]:
        """The command that runs this one in the namespace; its process is the same."""
        return ["ip", "netns", "exec", self.name, *command]

    def listen(self) -> socket.socket:
        """Return a socket that listens at the outer end of the cable."""
        # A thread that entered a namespace stays there, so this one is used once.
        with ThreadPoolExecutor(1) as threads:
            return threads.submit(self._listen).result()

    def _listen(self) -> socket.socket:
        with (NAMESPACES / self._outer).open() as namespace:
            libc = ctypes.CDLL(None, use_errno=True)
            if libc.setns(namespace.fileno(), CLONE_NEWNET) != 0:
                raise OSError(ctypes.get_errno(), "setns failed")
        return socket.create_server((self.outside, 0))

    def link_down(self) -> None:
        """Turn the program's interface off: connections get no answers, new ones fail at once."""
        self._within("link", "set", self._inner, "down")

    def blackhole_route(self) -> None:
        """Remove the route to the server: connections get no answers, new ones fail at once."""
        self._within("route", "replace", "blackhole", f"{self.outside}/32")

    def partition(self) -> None:
        """Drop all packets in both directions: connections get no answers, new ones time out."""
        self._mislead_program()
        self.deafen()

    def deafen(self) -> None:
        """What the program sends arrives; nothing comes back."""
        self._beyond(
            "neigh", "replace", self.address, "lladdr", UNUSED_ADDRESS, *self._at_outer(), *_FIXED
        )

    def heal(self) -> None:
        """All as at the beginning; what was under way is sent again by the systems themselves."""
        self._within("link", "set", self._inner, "up")
        # After other faults, this route or this neighbor does not exist.
        self._within("route", "del", "blackhole", f"{self.outside}/32", check=False)
        self._within("neigh", "del", self.outside, *self._at_inner(), check=False)
        self._beyond("neigh", "del", self.address, *self._at_outer(), check=False)

    def _mislead_program(self) -> None:
        wrong = (
            "neigh",
            "replace",
            self.outside,
            "lladdr",
            UNUSED_ADDRESS,
            *self._at_inner(),
            *_FIXED,
        )
        self._within(*wrong)

    def _at_inner(self) -> tuple[str, str]:
        return ("dev", self._inner)

    def _at_outer(self) -> tuple[str, str]:
        return ("dev", self._outer)

    def _make(self) -> None:
        _ip("netns", "add", self.name)
        _ip("netns", "add", self._outer)
        peer = ("peer", "name", self._inner, "netns", self.name)
        self._beyond("link", "add", self._outer, "type", "veth", *peer)
        self._beyond("address", "add", f"{self.outside}/30", *self._at_outer())
        self._beyond("link", "set", self._outer, "up")
        self._within("address", "add", f"{self.address}/30", *self._at_inner())
        self._within("link", "set", self._inner, "up")
        # The loopback interface of the namespace.
        self._within("link", "set", "lo", "up")

    def _remove(self) -> None:
        # Both ends of the cable go at once; a namespace when its last program and socket have.
        self._beyond("link", "del", self._outer, check=False)
        for each in (self.name, self._outer):
            _ip("netns", "del", each, check=False)

    def _within(self, *words: str, check: bool = True) -> None:
        _ip("-n", self.name, *words, check=check)

    def _beyond(self, *words: str, check: bool = True) -> None:
        _ip("-n", self._outer, *words, check=check)


_FIXED = ("nud", "permanent")


@cache
def why_not() -> str:
    """Why this machine allows no namespaces; empty if it does."""
    if shutil.which("ip") is None:
        return "no program `ip`: install iproute2"
    if os.geteuid() != 0:
        return "network namespaces are for root"
    name = _new_name()
    tried = _run("netns", "add", name)
    if tried.returncode:
        return f"the machine allows no network namespaces: {tried.stderr.strip()}"
    tried = _run("-n", name, "link", "add", f"{name}o", "type", "veth", "peer", "name", f"{name}i")
    _run("netns", "del", name)
    if tried.returncode:
        return f"the machine allows no virtual cables: {tried.stderr.strip()}"
    return ""


def _new_name() -> str:
    # The name of an interface has at most 15 letters; its last letter is the end of the cable.
    return f"gw{os.getpid()}x{next(_numbers)}"


def _choose_addresses() -> tuple[str, str]:
    """Return the addresses of both ends of a cable, which no other namespace sees."""
    subnet = f"{NETWORK}.{random.randrange(256)}"
    first = random.randrange(0, 256, 4) + 1
    return f"{subnet}.{first}", f"{subnet}.{first + 1}"


def _ip(*words: str, check: bool = True) -> None:
    done = _run(*words)
    if check and done.returncode:
        raise RuntimeError(f"ip {' '.join(words)}: {done.stderr.strip()}")


def _run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["ip", *words], capture_output=True, text=True)
