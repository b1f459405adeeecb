"""The pytest plugin: fixtures `gw`, `gw_app`, `gw_dsn` and `gw_connection`.

Every pytest run where graphile-worker is installed loads this module. It is not in the package,
because importing that takes half a second. The fixtures import it when a test asks for them.
"""

from collections.abc import Iterator
from contextlib import chdir
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from graphile_worker import App
    from graphile_worker.testing import Harness


@pytest.fixture(scope="session")
def gw_app(pytestconfig: pytest.Config) -> "App[Any]":
    """Return the app to test: by default the app that the command `graphile-worker` runs.

    Without one, it is the app of `graphile_worker.contrib.django` if that is in INSTALLED_APPS.
    """
    from graphile_worker import App, ConfigurationError
    from graphile_worker._cli.settings.layers import Settings
    from graphile_worker._cli.settings.resolve import resolve_app

    # The command reads settings from the current folder. Tests may run in another one.
    with chdir(pytestconfig.rootpath):
        app = resolve_app(Settings.collect({}))
    if app is None and _has_contrib_app(pytestconfig):
        from graphile_worker.contrib.django import app
    if not isinstance(app, App):
        raise ConfigurationError(
            'no app to test. Set app = "module:attribute" under [tool.graphile-worker] in '
            "pyproject.toml, set GRAPHILE_WORKER_APP, or override the fixture gw_app."
        )
    return app


@pytest.fixture
def gw_dsn() -> str | None:
    """Return the connection string for the connection that gw opens, or None for the app's."""
    return None


@pytest.fixture
def gw_connection(request: pytest.FixtureRequest) -> object:
    """Return the connection of the test. Override it to return your connection or session.

    With None, gw uses Django's if Django is set up, and otherwise opens one for the test.
    """
    if _has_django(request.config):
        request.getfixturevalue("db")
    return None


@pytest.fixture
def gw(gw_app: "App[Any]", gw_connection: object, gw_dsn: str | None) -> "Iterator[Harness]":
    """Yield the queue of the app in a test, a graphile_worker.testing.Harness."""
    from graphile_worker.testing import Harness

    with Harness(gw_app, gw_connection, dsn=gw_dsn) as harness:
        yield harness


def _has_django(config: pytest.Config) -> bool:
    if not config.pluginmanager.has_plugin("django"):
        return False
    from pytest_django.lazy_django import django_settings_is_configured

    return bool(django_settings_is_configured())


def _has_contrib_app(config: pytest.Config) -> bool:
    if not _has_django(config):
        return False
    from django.apps import apps

    return bool(apps.is_installed("graphile_worker.contrib.django"))
