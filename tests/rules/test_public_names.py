"""The names that the package exports, which it imports when a program uses them."""

import ast
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import graphile_worker


def test_every_name_is_imported_from_the_module_that_type_checkers_see():
    tree = ast.parse(Path(str(graphile_worker.__file__)).read_text(encoding="utf-8"))
    seen = {
        alias.name: node.module
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("graphile_worker.")
        for alias in node.names
    }
    assert seen == graphile_worker._MODULES
    assert sorted(seen) == graphile_worker.__all__
    for name, module in seen.items():
        assert getattr(graphile_worker, name) is getattr(import_module(str(module)), name)
    assert set(graphile_worker.__all__) <= set(dir(graphile_worker))


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="has no attribute 'Workerr'"):
        _ = graphile_worker.Workerr
    assert graphile_worker.sync.__name__ == "graphile_worker.sync"


def test_a_program_that_adds_jobs_does_not_import_workers():
    code = "from graphile_worker import App, sync; import sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    heavy = ("graphile_worker._worker", "graphile_worker._assembly", "graphile_worker.runner")
    assert not [name for name in done.stdout.split() if name.startswith(heavy)]
