"""Test a Django project: `class Tests(JobsMixin, TestCase)`. With pytest, use the fixture `gw`."""

from functools import cached_property
from typing import TYPE_CHECKING

from graphile_worker.contrib.django._app import DjangoApp, app
from graphile_worker.testing import Harness

if TYPE_CHECKING:
    from unittest import TestCase as Base
else:
    # Test runners would collect a subclass of TestCase.
    Base = object

__all__ = ["JobsMixin"]


class JobsMixin(Base):
    """Look at the queue in a test, and run its jobs. Put it before the test case of Django.

    The database of the app must be in `databases` of the test case. In a `TransactionTestCase`, a
    test that uses `jobs` deletes all jobs at its end.

    Attributes:
        jobs_app: The app to test.
    """

    jobs_app: DjangoApp = app

    @cached_property
    def jobs(self) -> Harness:
        """Return the queue of the app, from the first use until the end of the test."""
        return self.enterContext(Harness(self.jobs_app))
