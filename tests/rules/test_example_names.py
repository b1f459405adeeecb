"""What a reader sees can be typed: it uses no name that only a hidden block makes."""

import ast
import builtins
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.pages import ROOT, Block, blocks, pages
from tools.site import COMMENT


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_the_blocks_that_are_shown_use_no_names_of_hidden_ones(page: Path):
    known = set(dir(builtins))
    unknown: set[str] = set()
    for block in shown(page):
        tree = ast.parse(block.text)
        known |= set(made_in(tree))
        unknown |= set(used_in(tree)) - known

    assert unknown == set()


def shown(page: Path) -> list[Block]:
    seen = COMMENT.sub("", page.read_text(encoding="utf-8"))
    return [each for each in blocks(page) if each.kind == "python" and each.text in seen]


def made_in(tree: ast.AST) -> Iterator[str]:
    """Return each name that is bound in any scope: enough to find typing errors."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield name
            case ast.ClassDef(name=name) | ast.ExceptHandler(name=str(name)):
                yield name
            case ast.alias(name=name, asname=other):
                yield (other or name).partition(".")[0]
            case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
                yield name


def used_in(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            yield node.id
