"""Tests pass timings to constructors, and never patch a constant of the package."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src/graphile_worker"
TESTS = ROOT / "tests"


def list_constants() -> set[str]:
    """The names in capitals that modules and classes of the package assign."""
    return {
        name.id
        for path in PACKAGE.rglob("*.py")
        for name in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Store) and name.id.isupper()
    }


def find_patched_names(source: str) -> Iterator[tuple[int, str]]:
    """The line and the name of each attribute that a test sets on another object."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.attr
        elif isinstance(node, ast.Call) and _is_setattr(node.func):
            for argument in node.args[:2]:
                if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                    # The first argument may be a path such as "package.module.NAME".
                    yield node.lineno, argument.value.rpartition(".")[2]


def _is_setattr(function: ast.expr) -> bool:
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", None)
    return name == "setattr"


def test_no_test_patches_a_constant_of_the_package():
    constants = list_constants()
    # Only these can patch one; parsing all files takes seconds.
    suspicious = re.compile(rf"setattr|\.\s*({'|'.join(constants)})\b")

    patched = [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for path in sorted(TESTS.rglob("*.py"))
        if suspicious.search(source := path.read_text(encoding="utf-8"))
        for line, name in find_patched_names(source)
        if name in constants
    ]

    assert "MAX_ATTEMPTS" in constants
    assert patched == []


@pytest.mark.parametrize(
    "source",
    [
        'monkeypatch.setattr(retry, "MAX_ATTEMPTS", 3)',
        'patch.setattr("graphile_worker._db.retry.MAX_ATTEMPTS", 3)',
        'setattr(retry, "MAX_ATTEMPTS", 3)',
        "retry.MAX_ATTEMPTS = 3",
        "first.x, retry.MAX_ATTEMPTS = 1, 3",
    ],
)
def test_a_patched_constant_is_found(source):
    assert "MAX_ATTEMPTS" in [name for _, name in find_patched_names(source)]
