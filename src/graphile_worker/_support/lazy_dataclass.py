"""Frozen dataclasses whose import is cheap.

`dataclass` compiles six methods for each class, which takes longer than the rest of an import.
These classes share their methods. `dataclass` processes a class when a program asks for its fields.
"""

import threading
from collections.abc import Callable, KeysView, Mapping
from dataclasses import MISSING, Field, FrozenInstanceError, dataclass, field, fields
from inspect import Parameter, Signature, get_annotations
from typing import Any, ClassVar, dataclass_transform, get_origin

_lock = threading.RLock()


class _LazyAttribute:
    """An attribute of a class, computed when it is first read."""

    def __init__(self, name: str, compute: Callable[[Any], None]) -> None:
        self._name = name
        self._compute = compute

    def __get__(self, instance: object, owner: Any) -> Any:
        with _lock:
            if vars(owner)[self._name] is self:
                self._compute(owner)
        return vars(owner)[self._name]


def _read_fields(owner: Any) -> None:
    found: dict[str, Any] = {}
    for base in reversed(owner.__mro__[1:]):
        found.update(getattr(base, "_field_values", {}))
    annotations: dict[str, object] = get_annotations(owner)
    for name, annotation in annotations.items():
        if get_origin(annotation) is not ClassVar:
            found[name] = vars(owner).get(name, MISSING)
            if isinstance(found[name], Field) and found[name].default is not MISSING:
                found[name] = found[name].default
    computed = {
        "_defaults": {
            name: value
            for name, value in found.items()
            if value is not MISSING and not isinstance(value, Field)
        },
        "_field_names": found.keys(),
        "_field_values": found,
        "__match_args__": () if owner._has_keyword_only_fields else tuple(found),
    }
    for name, value in computed.items():
        setattr(owner, name, value)


def _process(owner: Any) -> None:
    # Before `dataclass` deletes the functions that create defaults.
    _ = owner._field_values
    # Without the methods of LazyDataclass.
    process = dataclass(
        init=False, repr=False, eq=False, frozen=True, kw_only=owner._has_keyword_only_fields
    )
    process(owner)


_LAZY_ATTRIBUTES = {
    name: _LazyAttribute(name, compute)
    for compute, names in {
        _read_fields: ("_defaults", "_field_names", "_field_values", "__match_args__"),
        _process: ("__dataclass_fields__", "__dataclass_params__"),
    }.items()
    for name in names
}


class _LazySignature:
    def __get__(self, instance: object, owner: Any) -> Signature:
        kinds = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
        parameters = [
            Parameter(
                each.name,
                kinds[owner._has_keyword_only_fields],
                annotation=each.type,
                default=Parameter.empty if value is MISSING else value,
            )
            for each, value in zip(fields(owner), owner._field_values.values(), strict=True)
        ]
        return Signature(parameters)


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
class LazyDataclass:
    """Makes its subclasses frozen dataclasses."""

    __signature__ = _LazySignature()
    _has_keyword_only_fields: ClassVar[bool] = False
    _defaults: ClassVar[Mapping[str, Any]]
    _field_names: ClassVar[KeysView[str]]

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        # Set on every class, which would otherwise find the attributes of its base class. A class
        # that `dataclass` creates again for its slots has its own.
        for name, attribute in _LAZY_ATTRIBUTES.items():
            if name not in vars(cls):
                setattr(cls, name, attribute)

    def __init__(self, *arguments: Any, **values: Any) -> None:
        # A frozen instance rejects assignments.
        own = self.__dict__
        own.update(self._defaults)
        if arguments:
            own.update(_name_arguments(self, arguments, values))
        own.update(values)
        if own.keys() != self._field_names:
            _complete(self, own)

    def __repr__(self) -> str:
        values = ", ".join(f"{name}={getattr(self, name)!r}" for name in self._field_names)
        return f"{type(self).__qualname__}({values})"

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in self._field_names)

    def __hash__(self) -> int:
        return hash(tuple(getattr(self, name) for name in self._field_names))

    def __setattr__(self, name: str, value: object) -> None:
        raise FrozenInstanceError(f"cannot assign to field {name!r}")

    def __delattr__(self, name: str) -> None:
        raise FrozenInstanceError(f"cannot delete field {name!r}")


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field,))
class LazyKeywordDataclass(LazyDataclass):
    """Makes its subclasses frozen dataclasses with keyword-only fields."""

    _has_keyword_only_fields = True


def _name_arguments(
    instance: Any, arguments: tuple[Any, ...], values: Mapping[str, Any]
) -> dict[str, Any]:
    names = instance.__match_args__
    class_name = type(instance).__qualname__
    if len(arguments) > len(names):
        raise TypeError(f"{class_name}() takes {len(names)} positional arguments")
    named = dict(zip(names, arguments, strict=False))
    if both := sorted(named.keys() & values.keys()):
        raise TypeError(f"{class_name}() got two values of the argument {both[0]!r}")
    return named


def _complete(instance: Any, values: dict[str, Any]) -> None:
    """Add the defaults that a function creates, and reject a wrong call."""
    class_name = type(instance).__qualname__
    if unknown := sorted(values.keys() - instance._field_names):
        raise TypeError(f"{class_name}() got an unexpected keyword argument {unknown[0]!r}")
    for name, default in instance._field_values.items():
        if name in values:
            continue
        if default is MISSING or default.default_factory is MISSING:
            raise TypeError(f"{class_name}() requires the argument {name!r}")
        values[name] = default.default_factory()
