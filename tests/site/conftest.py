"""The documentation site, built once."""

import pytest

from tests.site.built_site import Site
from tests.support.shared_folder import made_once
from tools.site import build


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    folder = made_once(tmp_path_factory, "site", lambda folder: build(folder / "built"))
    return Site(folder / "built")
