import pytest
from graphile_worker import App


@pytest.fixture(scope="session")
def gw_app() -> App[None]:
    """Not that of config.worker, which would close the connection of a TestCase."""
    from shop.tasks import app  # not before Django is set up

    return app
