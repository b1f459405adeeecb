"""Frozen dataclasses that are processed when a program first uses them."""

import copy
import inspect
import pickle
import threading
from dataclasses import FrozenInstanceError, asdict, dataclass, field, fields, is_dataclass, replace
from typing import Any, ClassVar

import pytest

from graphile_worker._support.lazy_dataclass import LazyDataclass, LazyKeywordDataclass


class Base(LazyKeywordDataclass):
    """A base class."""

    name: ClassVar[str]
    number: int


class Derived(Base):
    """A class with all kinds of defaults."""

    name = "derived"
    text: str = "none"
    items: list[int] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class PlainBase:
    name: ClassVar[str]
    number: int


@dataclass(frozen=True, kw_only=True)
class Plain(PlainBase):
    name = "derived"
    text: str = "none"
    items: list[int] = field(default_factory=list)


class Point(LazyDataclass):
    """A class with positional fields."""

    x: int
    y: int = 0
    labels: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class PlainPoint:
    x: int
    y: int = 0
    labels: list[str] = field(default_factory=list)


def test_fields_of_a_plain_class_are_positional():
    right: list[list[Any]] = [[1], [1, 2], [1, 2, ["a"]]]
    for arguments in right:
        assert asdict(Point(*arguments)) == asdict(PlainPoint(*arguments))
    assert asdict(Point(1, y=3)) == asdict(PlainPoint(1, y=3))
    wrong: list[tuple[list[Any], dict[str, Any]]]
    wrong = [([], {}), ([1, 2, [], 4], {}), ([1], {"x": 1})]
    for arguments, values in wrong:
        with pytest.raises(TypeError):
            PlainPoint(*arguments, **values)
        with pytest.raises(TypeError, match=r"Point\(\) "):
            Point(*arguments, **values)


def test_a_pattern_can_have_positional_fields():
    class Fresh(Point):
        """A class without an instance."""

    match Fresh(1, 2):
        case Fresh(x, y):
            assert (x, y) == (1, 2)


def test_values_and_defaults_are_those_of_a_dataclass():
    for values in ({"number": 1}, {"number": 1, "text": "a"}, {"items": [2], "number": 1}):
        assert asdict(Derived(**values)) == asdict(Plain(**values))
    assert Derived(number=1).items is not Derived(number=1).items


def test_a_wrong_call_is_a_type_error():
    for values in ({}, {"text": "a"}, {"number": 1, "other": 2}, {"number": 1, "name": "a"}):
        with pytest.raises(TypeError):
            Plain(**values)
        with pytest.raises(TypeError, match=r"Derived\(\) .*(number|other|name)"):
            Derived(**values)
    with pytest.raises(TypeError):
        Derived(1)  # type: ignore[call-arg]  # what the test is about


def test_an_instance_cannot_be_changed():
    instance = Derived(number=1)

    for name in ("number", "text", "other"):
        with pytest.raises(FrozenInstanceError):
            setattr(instance, name, 2)
        with pytest.raises(FrozenInstanceError):
            delattr(instance, name)


def test_equality_hash_and_repr_are_those_of_a_dataclass():
    first, same, other = Base(number=1), Base(number=1), Base(number=2)
    assert (first == same, first == other, first == 1) == (True, False, False)
    assert hash(first) == hash(same) == hash(PlainBase(number=1))
    assert Base(number=1) != Derived(number=1)
    assert Derived(items=[], text="a", number=1) == Derived(number=1, text="a")
    assert repr(Derived(text="a", number=1)) == "Derived(number=1, text='a', items=[])"
    with pytest.raises(TypeError, match="unhashable"):
        hash(Derived(number=1))


def test_functions_of_dataclasses_copy_and_pickle_take_it():
    instance = Derived(number=1, items=[2])

    assert [each.name for each in fields(Derived)] == [each.name for each in fields(Plain)]
    assert asdict(replace(instance, number=3)) == {"number": 3, "text": "none", "items": [2]}
    for copied in (
        copy.copy(instance),
        copy.deepcopy(instance),
        pickle.loads(pickle.dumps(instance)),
    ):
        assert copied == instance
    [number, text, items] = inspect.signature(Derived).parameters.values()
    assert (number.default, text.default) == (inspect.Parameter.empty, "none")
    assert items.kind is inspect.Parameter.KEYWORD_ONLY


def test_a_class_has_its_fields_before_its_first_instance():
    class Fresh(Base):
        """A class without an instance."""

        extra: int
        more: list[int] = field(default_factory=list)

    # The base class is processed, and its fields are not those of the subclass.
    assert [each.name for each in fields(Base)] == ["number"]
    assert [each.name for each in fields(Fresh)] == ["number", "extra", "more"]
    assert Fresh(number=1, extra=2).more == []
    assert is_dataclass(Fresh)


def test_a_program_can_derive_a_dataclass():
    @dataclass(frozen=True, kw_only=True, slots=True)
    class Own(Base):
        extra: int = 3

    assert asdict(Own(number=1)) == {"number": 1, "extra": 3}
    assert Own(number=1) == Own(number=1, extra=3)


def test_threads_can_create_the_first_instance_together():
    for _ in range(20):
        # A new class each time.
        kind: Any = type("Shared", (Derived,), {"__annotations__": {"extra": int}, "extra": 5})
        barrier = threading.Barrier(4)
        found: list[dict[str, Any]] = []

        def create(kind=kind, barrier=barrier, found=found):
            barrier.wait()
            found.append(asdict(kind(number=1)))

        threads = [threading.Thread(target=create) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert found == [{"number": 1, "text": "none", "items": [], "extra": 5}] * 4
