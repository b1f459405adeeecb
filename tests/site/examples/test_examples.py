"""Each example is listed, can be installed, and has its own tests and one in this folder."""

import re
import tomllib

import pytest
from packaging.requirements import Requirement

from tests.site.examples.conftest import ROOT

FOLDERS = sorted(
    path for path in (ROOT / "examples").iterdir() if path.is_dir() and path.name[0] != "."
)


def test_each_example_is_listed_and_has_a_test(figure):
    listing = (ROOT / "examples/README.md").read_text(encoding="utf-8")
    names = [path.name for path in FOLDERS]
    figure(f"examples that are followed by a test: {len(names)} of {len(names)}")

    followed = {path.stem for path in (ROOT / "tests/site/examples").glob("test_*.py")}

    assert sorted(re.findall(r"\]\(([\w-]+)/README\.md\)", listing)) == names
    assert followed == {"test_examples"} | {f"test_{name.replace('-', '_')}" for name in names}


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_each_example_can_be_installed_with_this_version(folder):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lines = (folder / "requirements.txt").read_text(encoding="utf-8").splitlines()
    given = [line for line in lines if line and line[0] != "#"]

    [ours] = [each for each in map(Requirement, given) if each.name == project["name"]]

    assert ours.specifier.contains(project["version"], prereleases=True)


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_each_example_has_its_own_tests(folder):
    assert list(folder.glob("test_*.py"))
