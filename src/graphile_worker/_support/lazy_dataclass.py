"""Frozen dataclasses that `dataclass` processes when a program first uses them.

It takes longer to process a class than to import it, and a process uses few of all events.
"""

import threading
from collections.abc import KeysView, Mapping
from dataclasses import MISSING, FrozenInstanceError, dataclass, field, fields
from inspect import Parameter, Signature
from typing import Any, ClassVar, dataclass_transform

_lock = threading.RLock()


class _Unprocessed:
    """An attribute of a class that is not processed yet. Reading it processes the class."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, instance: object, owner: Any) -> Any:
        with _lock:
            if vars(owner)[self._name] is self:
                _process(owner)
        return vars(owner)[self._name]


def _process(owner: Any) -> None:
    # Without the methods of LazyDataclass, which are the same for all classes.
    dataclass(init=False, repr=False, eq=False, frozen=True, kw_only=True)(owner)
    defaults = {each.name: each.default for each in fields(owner)}
    owner._defaults = {name: it for name, it in defaults.items() if it is not MISSING}
    owner._field_names = defaults.keys()


class _LazySignature:
    def __get__(self, instance: object, owner: Any) -> Signature:
        return Signature(
            [
                Parameter(
                    each.name,
                    Parameter.KEYWORD_ONLY,
                    annotation=each.type,
                    default=next(
                        (it for it in (each.default, each.default_factory) if it is not MISSING),
                        Parameter.empty,
                    ),
                )
                for each in fields(owner)
            ]
        )


_UNPROCESSED = {
    name: _Unprocessed(name)
    for name in ("__dataclass_fields__", "__dataclass_params__", "_defaults", "_field_names")
}


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(field,))
class LazyDataclass:
    """Makes its subclasses frozen dataclasses with keyword-only fields."""

    __signature__ = _LazySignature()
    _defaults: ClassVar[Mapping[str, Any]]
    _field_names: ClassVar[KeysView[str]]

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        # Set on every class, which would otherwise find the attributes of a processed base class.
        # A class that `dataclass` creates again for its slots has its own.
        for name, attribute in _UNPROCESSED.items():
            if name not in vars(cls):
                setattr(cls, name, attribute)

    def __init__(self, **values: Any) -> None:
        # A frozen instance rejects assignments.
        own = self.__dict__
        own.update(self._defaults)
        own.update(values)
        if own.keys() != self._field_names:
            _complete(self, own)

    def __repr__(self) -> str:
        values = ", ".join(f"{name}={getattr(self, name)!r}" for name in self._field_names)
        return f"{type(self).__qualname__}({values})"

    def __eq__(self, other: object) -> bool:
        return self.__dict__ == other.__dict__ if type(other) is type(self) else NotImplemented

    def __hash__(self) -> int:
        return hash(tuple(getattr(self, name) for name in self._field_names))

    def __setattr__(self, name: str, value: object) -> None:
        raise FrozenInstanceError(f"cannot assign to field {name!r}")

    def __delattr__(self, name: str) -> None:
        raise FrozenInstanceError(f"cannot delete field {name!r}")


def _complete(instance: Any, values: dict[str, Any]) -> None:
    """Add the defaults that a function creates, and reject a wrong call."""
    name = type(instance).__qualname__
    if unknown := sorted(values.keys() - instance._field_names):
        raise TypeError(f"{name}() got an unexpected keyword argument {unknown[0]!r}")
    for each in fields(instance):
        if each.name in values:
            continue
        if each.default_factory is MISSING:
            raise TypeError(f"{name}() requires the keyword argument {each.name!r}")
        values[each.name] = each.default_factory()
