"""InstanceRegistry: the existing instances of a class, for functions that change all of them."""

import os
import threading
from collections.abc import Callable
from typing import Generic, TypeVar
from weakref import WeakSet

T = TypeVar("T")


class InstanceRegistry(Generic[T]):
    """The existing instances of a class, and functions that are called with each of them."""

    def __init__(self) -> None:
        self._instances: WeakSet[T] = WeakSet()
        self._functions: tuple[Callable[[T], None], ...] = ()
        # The garbage collector may run code that creates another instance.
        self._lock = threading.RLock()
        if hasattr(os, "register_at_fork"):
            # Another thread may hold the lock during a fork.
            os.register_at_fork(after_in_child=self._renew_lock)

    def _renew_lock(self) -> None:
        self._lock = threading.RLock()

    def add(self, instance: T) -> None:
        """Add a new instance, and call the functions with it."""
        with self._lock:
            self._instances.add(instance)
            functions = self._functions
        for function in functions:
            function(instance)

    def call_with_each(self, function: Callable[[T], None]) -> None:
        """Call a function with each instance, and with new ones until `stop_calling`."""
        with self._lock:
            self._functions = (*self._functions, function)
            instances = list(self._instances)
        for instance in instances:
            function(instance)

    def stop_calling(self, function: Callable[[T], None]) -> list[T]:
        """Stop calling a function, and return the existing instances."""
        with self._lock:
            self._functions = tuple(each for each in self._functions if each != function)
            return list(self._instances)
