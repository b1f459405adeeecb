"""A project that has the plugin and does not use it."""

import sys


def test_the_plugin_does_not_import_the_package(pytestconfig) -> None:
    assert pytestconfig.pluginmanager.has_plugin("graphile_worker")
    for module in ("graphile_worker", "psycopg", "click", "sqlalchemy"):
        assert module not in sys.modules
