"""Expired unique keys: a round deletes all of them, unless that takes too long."""

import logging
from typing import Any

from graphile_worker._lease.expired_keys import (
    KEYS_PER_STATEMENT,
    MAX_ROUND_SECONDS,
    ExpiredKeys,
)
from graphile_worker._sql.identifiers import Schemas
from graphile_worker._sql.queries.unique_keys import UniqueKeysAccess
from graphile_worker._sql.query import Query
from graphile_worker._support.logs import Logger
from tests.support.clocks import ManualClock
from tests.support.fake_database import FakeDatabase

STATEMENT_SECONDS = 0.25


class KeyTable(FakeDatabase):
    """Expired keys, of which each statement deletes some."""

    def __init__(self, count: int, clock: ManualClock) -> None:
        super().__init__()
        self.count = count
        self.clock = clock

    def answer(self, query: Query[Any]) -> Any:
        if query.statement == "check_unique_keys":
            return UniqueKeysAccess(*[True] * len(UniqueKeysAccess._fields))
        self.clock.now += STATEMENT_SECONDS
        deleted = min(self.count, KEYS_PER_STATEMENT)
        self.count -= deleted
        return deleted


def build(count: int) -> tuple[KeyTable, ExpiredKeys]:
    clock = ManualClock()
    table = KeyTable(count, clock)
    logger = Logger(logging.getLogger("graphile_worker"))
    schemas = Schemas.from_names("jobs")
    return table, ExpiredKeys(table, schemas, logger, clock=clock.monotonic)


async def test_a_round_deletes_all_expired_keys():
    table, keys = build(150 * KEYS_PER_STATEMENT + 7)

    assert await keys.delete_once() == 150 * KEYS_PER_STATEMENT + 7
    assert table.count == 0


async def test_a_round_ends_after_its_time_and_the_next_one_continues():
    per_round = int(MAX_ROUND_SECONDS / STATEMENT_SECONDS) * KEYS_PER_STATEMENT
    table, keys = build(per_round + 7)

    assert await keys.delete_once() == per_round
    assert await keys.delete_once() == 7
    assert table.count == 0
