"""What the wheel and the sdist hold, and that they are the same wherever they are built."""

import email
import os
import re
import tarfile
import tomllib
import zipfile
from email.message import Message
from pathlib import Path

import pytest

from tests.support.wheel import ROOT, build, checkout

pytestmark = [pytest.mark.single_version, pytest.mark.feature("F9")]


@pytest.fixture(scope="module")
def metadata(wheel: Path) -> Message:
    return read_metadata(wheel)


def read_metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (each for each in archive.namelist() if each.endswith(".dist-info/METADATA"))
        return email.message_from_bytes(archive.read(name))


@pytest.fixture(scope="module")
def project() -> dict:
    found: dict = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return found


def test_the_wheel_holds_the_package_and_the_pytest_plugin_and_nothing_else(wheel: Path):
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if ".dist-info/" not in name}
    written = [path for path in (ROOT / "src").rglob("*") if path.is_file()]

    assert held == {
        str(path.relative_to(ROOT / "src")) for path in written if "__pycache__" not in path.parts
    }
    assert "graphile_worker/py.typed" in held


def test_the_metadata_contains_what_installers_and_readers_need(metadata: Message, project: dict):
    assert metadata["License-Expression"] == "MIT"
    assert metadata.get_all("License-File") == ["LICENSE"]
    assert metadata["Requires-Python"] == ">=3.11"
    extras = {
        "dashboard",
        "django",
        "jsonschema",
        "otel",
        "prometheus",
        "sentry",
        "structlog",
        "uvloop",
    }
    assert set(metadata.get_all("Provides-Extra", [])) == extras
    assert metadata["Description-Content-Type"] == "text/markdown"
    readme = metadata.get_payload(decode=True)
    assert readme == (ROOT / "README.md").read_bytes()
    # A build names an address only if it is given one.
    assert metadata.get_all("Project-URL") is None
    assert metadata["Home-page"] is None


def test_a_release_has_project_urls_and_a_readme_without_relative_links(tmp_path: Path):
    home = "https://example.com/owner/name"

    wheel = build("wheel", tmp_path / "dist", checkout(tmp_path / "source"), REPOSITORY_URL=home)

    released = read_metadata(wheel)
    addresses = [each.split(", ") for each in released.get_all("Project-URL", [])]
    assert [name for name, _ in addresses] == ["Source", "Documentation", "Changelog", "Issues"]
    assert all(address.startswith(home) for _, address in addresses)
    links = re.findall(r"\]\(([^)]+)\)", str(released.get_payload()))
    assert len(links) > 30
    assert [link for link in links if not link.startswith("https://")] == []


def test_the_classifiers_name_every_python_that_the_matrix_tests(metadata: Message):
    matrix = (ROOT / "noxfile.py").read_text()
    prefix = "Programming Language :: Python :: 3."
    named = [each for each in metadata.get_all("Classifier", []) if each.startswith(prefix)]

    versions = [each.rpartition(" ")[2] for each in named]

    assert versions == ["3.11", "3.12", "3.13", "3.14"]
    assert all(f'"{version}"' in matrix for version in versions)


def test_the_sdist_is_what_git_tracks(sdist: Path, tmp_path: Path):
    with tarfile.open(sdist) as archive:
        held = {Path(*Path(each.name).parts[1:]) for each in archive if each.isfile()}
    copy = checkout(tmp_path)

    tracked = {path.relative_to(copy) for path in copy.rglob("*") if path.is_file()}

    assert held == tracked | {Path("PKG-INFO")}


def test_a_wheel_built_from_the_sdist_is_the_same(wheel: Path, sdist: Path, tmp_path: Path):
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    (unpacked,) = tmp_path.iterdir()

    again = build("wheel", tmp_path / "dist", unpacked)

    assert again.name == wheel.name
    assert again.read_bytes() == wheel.read_bytes()


@pytest.mark.parametrize(
    ("kind", "epoch"), [("wheel", {}), ("sdist", {"SOURCE_DATE_EPOCH": "1760000000"})]
)
def test_two_builds_elsewhere_and_later_are_the_same(kind: str, epoch: dict, tmp_path: Path):
    here, there = checkout(tmp_path / "here"), checkout(tmp_path / "some/where else")
    for path in there.rglob("*"):
        os.utime(path, (1_000_000_000, 1_000_000_000))
        # As another umask would have it.
        path.chmod(path.stat().st_mode & 0o700)

    first = build(kind, tmp_path / "first", here, TZ="UTC", **epoch)
    second = build(kind, tmp_path / "second", there, TZ="Pacific/Auckland", **epoch)

    assert first.name == second.name
    assert first.read_bytes() == second.read_bytes()
