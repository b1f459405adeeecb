"""AGENTS.md names commands of the justfile, folders and pages that exist."""

import re

import pytest

from tests.support.pages import ROOT

TEXT = (ROOT / "AGENTS.md").read_text(encoding="utf-8")
RECIPES = re.findall(
    r"^([a-z][\w-]*)(?: [^:=]*)?:(?!=)", (ROOT / "justfile").read_text(), re.MULTILINE
)


@pytest.mark.parametrize("recipe", re.findall(r"`just ([\w-]+)", TEXT))
def test_each_command_is_in_the_justfile(recipe):
    assert recipe in RECIPES


@pytest.mark.parametrize(
    "path", re.findall(r"`((?:src|tests|docs|examples|tools|benchmarks)/\S*)`", TEXT)
)
def test_each_folder_exists(path):
    assert (ROOT / path).is_dir()


@pytest.mark.parametrize("path", re.findall(r"\]\(([^)#]+)\)", TEXT))
def test_each_link_has_a_target(path):
    assert (ROOT / path).is_file()


def test_it_is_short():
    assert len(TEXT.splitlines()) < 70
