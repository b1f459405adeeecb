"""The documentation site, built once."""

import pytest

from tests.site.built_site import Site
from tools.site import build


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    folder = tmp_path_factory.mktemp("site")
    build(folder / "built")
    return Site(folder / "built")
