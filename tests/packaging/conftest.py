"""The wheel and the sdist, built once for all tests."""

from pathlib import Path

import pytest

from tests.support.shared_folder import made_once
from tests.support.wheel import build


@pytest.fixture(scope="session")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel and the sdist."""

    def make(folder: Path) -> None:
        build("sdist", folder)
        build("wheel", folder)

    return made_once(tmp_path_factory, "dist", make)


@pytest.fixture(scope="session")
def wheel(dist: Path) -> Path:
    return next(dist.glob("*.whl"))


@pytest.fixture(scope="session")
def sdist(dist: Path) -> Path:
    return next(dist.glob("*.tar.gz"))
