"""What a package needs, by what is declared: its own requirements, and theirs."""

import re
from collections.abc import Iterator
from importlib.metadata import Distribution, distributions
from pathlib import Path

from packaging.requirements import Requirement


def installed(python: Path) -> dict[str, Distribution]:
    """The distributions of an environment, by their plain names."""
    (site,) = python.parents[1].glob("lib/python*/site-packages")
    return {_plain(each.name): each for each in distributions(path=[str(site)])}


def declared(name: str, found: dict[str, Distribution], python_version: str) -> set[str]:
    """The names of all that a distribution needs there, itself included."""
    needed: set[str] = set()
    waiting = [Requirement(name)]
    while waiting:
        requirement = waiting.pop()
        needed.add(_plain(requirement.name))
        waiting += _requirements(requirement, found[_plain(requirement.name)], python_version)
    return needed


def _requirements(
    of: Requirement, distribution: Distribution, version: str
) -> Iterator[Requirement]:
    here = {"python_version": version, "python_full_version": f"{version}.9"}
    for line in distribution.requires or []:
        requirement = Requirement(line)
        extras = [*of.extras, ""]
        if requirement.marker is None or any(
            requirement.marker.evaluate({**here, "extra": extra}) for extra in extras
        ):
            yield requirement


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
