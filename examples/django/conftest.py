import pytest
from graphile_worker import App


@pytest.fixture(scope="session")
def gw_app() -> App[None]:
    """Return the app without the hook of config.worker, which closes connections."""
    from shop.tasks import app  # not before Django is set up

    return app
