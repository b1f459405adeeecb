"""Where packages and images come from: what is installed has a hash, what is built on a digest."""

import re
import tomllib

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from tools.pages import ROOT

pytestmark = pytest.mark.single_version

DEV, IMAGE, BUILD, UV = (f"requirements-{name}.txt" for name in ("dev", "image", "build", "uv"))

# A package of a lock, up to the next: its name, version and marker, and its hashes.
PINNED = re.compile(r"^(\w[^\\\n]*)(.*?)(?=^\w|\Z)", re.MULTILINE | re.DOTALL)
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def packages(lock: str) -> list[tuple[Requirement, str]]:
    """Each package of a lock, with its hashes. A name is there once for each marker."""
    return [(Requirement(named), hashes) for named, hashes in PINNED.findall(lock)]


def environments() -> list[dict[str, str]]:
    """What markers are compared with: the first and the last patch of each Python, on Linux."""
    versions = re.findall(r"Python :: (3\.\d+)", "\n".join(PROJECT["classifiers"]))
    return [
        {
            "python_version": version,
            "python_full_version": f"{version}.{patch}",
            "implementation_name": "cpython",
            "platform_python_implementation": "CPython",
            "platform_system": "Linux",
            "sys_platform": "linux",
            "os_name": "posix",
        }
        for version in versions
        for patch in (0, 99)
    ]


def applies(requirement: Requirement, environment: dict[str, str]) -> bool:
    return requirement.marker is None or requirement.marker.evaluate(environment)


def pins(lock: str, environment: dict[str, str]) -> dict[str, str]:
    """The version of each package that a lock installs there."""
    found: dict[str, str] = {}
    for requirement, _ in packages(lock):
        if applies(requirement, environment):
            name = canonicalize_name(requirement.name)
            assert name not in found, f"{name} has two versions: {environment}"
            found[name] = str(requirement.specifier).removeprefix("==")
    return found


def test_every_package_of_a_lock_has_a_version_and_a_hash():
    for lock in (DEV, IMAGE, BUILD, UV):
        assert packages(text(lock)), lock
        for requirement, hashes in packages(text(lock)):
            assert re.fullmatch(r"==[^*,]+", str(requirement.specifier)), f"{lock}: {requirement}"
            assert re.search(r"--hash=sha256:[0-9a-f]{64}\b", hashes), f"{lock}: {requirement}"


def test_a_package_that_a_lock_names_twice_has_one_version_in_each_environment():
    lock = """\
django==5.2.19 ; python_full_version < '3.12' \\
    --hash=sha256:00
    # via graphile-worker (pyproject.toml:dev)
django==6.1.3 ; python_full_version >= '3.12' \\
    --hash=sha256:01
tzdata==2026.6 ; sys_platform == 'win32' \\
    --hash=sha256:02
"""
    found = {each["python_version"]: pins(lock, each) for each in environments()}

    assert found == {
        "3.11": {"django": "5.2.19"},
        "3.12": {"django": "6.1.3"},
        "3.13": {"django": "6.1.3"},
        "3.14": {"django": "6.1.3"},
    }
    both = lock.replace("< '3.12'", "< '3.13'")
    with pytest.raises(AssertionError, match="django has two versions"):
        [pins(both, each) for each in environments()]


def test_the_image_consists_of_versions_that_the_tests_run_with():
    extras = PROJECT["optional-dependencies"]
    declared = [*PROJECT["dependencies"], *extras["otel"], *extras["uvloop"]]
    for environment in environments():
        dev, image, build, uv = (pins(text(each), environment) for each in (DEV, IMAGE, BUILD, UV))
        assert image.items() | build.items() <= dev.items()
        assert "hatchling" in build
        assert [*uv] == ["uv"]
        for requirement in map(Requirement, declared):
            if applies(requirement, environment):
                version = image[canonicalize_name(requirement.name)]
                assert requirement.specifier.contains(version), requirement


def test_a_lock_names_packages_and_hashes_but_no_host():
    for lock in (DEV, IMAGE, BUILD, UV):
        assert "://" not in text(lock), lock
        for line in text(lock).splitlines():
            # An option, such as that of an index, would begin the line with a dash.
            assert re.match(r"\w|    --hash=sha256:|    #", line), f"{lock}: {line}"


def test_the_image_and_the_gate_install_packages_only_by_their_hashes():
    for file in ("Dockerfile", ".ci/run"):
        lines = re.sub(r"\\\n\s*", " ", text(file)).splitlines()
        parts = [part for line in lines if line[:1] != "#" for part in line.split("&&")]
        installs = [part for part in parts if re.search(r"\bpip\"? install\b", part)]
        assert len(installs) == 3, file
        for install in installs:
            is_closed = "--no-deps" in install and ("--no-index" in install or "-e ." in install)
            assert is_closed or "--require-hashes" in install, f"{file}: {install}"


# The base of the image


def is_pinned(dockerfile: str) -> bool:
    """Does it name every image that it is made from by digest?"""
    arguments = dict(re.findall(r"^ARG (\w+)=(\S+)$", dockerfile, re.MULTILINE))
    named = re.findall(r"^FROM (\S+)", dockerfile, re.MULTILINE)
    bases = [re.sub(r"\$\{(\w+)\}", lambda match: arguments[match[1]], base) for base in named]
    return bool(bases) and all(re.search(r"@sha256:[0-9a-f]{64}$", base) for base in bases)


def may_be_released(version: str, dockerfile: str) -> bool:
    """A version between releases follows its tag, so that its base is never old."""
    return Version(version).is_devrelease or is_pinned(dockerfile)


def test_a_release_names_the_base_of_its_image_by_digest():
    tag = "ARG BASE=python:3.14-slim-trixie\nFROM ${BASE} AS build\nFROM ${BASE}\n"
    digest = tag.replace("trixie", f"trixie@sha256:{'0123456789abcdef' * 4}")
    half = digest + "FROM python:3.14-slim-trixie\n"
    for version, dockerfile, expected in [
        ("0.1.0.dev0", tag, True),
        ("0.1.0", tag, False),
        ("0.1.0rc1", tag, False),
        ("0.1.0", half, False),
        ("0.1.0", digest, True),
    ]:
        assert may_be_released(version, dockerfile) is expected

    assert may_be_released(PROJECT["version"], text("Dockerfile")), (
        "Dockerfile: name the digest of BASE before a release. docs/contributing/releasing.md "
        "says how"
    )
