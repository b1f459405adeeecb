"""Plans for settings that suit a queue: what should be set, what is set, and setting it.

What should be set for a table stands in the statement that sets it, each with its reason above: see
statements/tune_jobs.sql. All of them are storage parameters, so other workers of the same schema
are not concerned, whatever their language.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from graphile_worker.errors import SchemaMissing
from graphile_worker.sql import storage
from graphile_worker.sql.failures import LOCK_NOT_AVAILABLE, sqlstate_of
from graphile_worker.sql.identifiers import Schemas
from graphile_worker.sql.query import Atomic, Pause, Plan, Query
from graphile_worker.sql.statements import script_text
from graphile_worker.sql.storage import HeldSnapshot, ServerSetting, Storage

TRIES = 5
PAUSE = 0.5

# A transaction that is younger does no harm yet.
HELD_FOR = 5

LINE = re.compile(r"^  (?:-- (?P<reason>.+)|(?P<name>\w+) = (?P<value>[\w.]+),?)$", re.MULTILINE)
SWITCHES = {"on": 1.0, "true": 1.0, "yes": 1.0, "off": 0.0, "false": 0.0, "no": 0.0}


@dataclass(frozen=True, slots=True)
class TableSetting:
    """A storage parameter: what it should be and why, and what it is (None: not set)."""

    name: str
    value: str
    reason: str
    now: str | None

    @property
    def is_set(self) -> bool:
        return self.now is not None and _plain(self.now) == _plain(self.value)


@dataclass(frozen=True, slots=True)
class TableTuning:
    """How a table should be set. Only its owner may change that."""

    table: str
    settings: tuple[TableSetting, ...]
    may_change: bool
    owner: str

    @property
    def is_set(self) -> bool:
        return all(each.is_set for each in self.settings)


@dataclass(frozen=True, slots=True)
class ServerAdvice:
    """A setting of the server that is not good for a queue; `sql` changes it, by who may."""

    name: str
    value: str
    now: str
    reason: str
    sql: str


@dataclass(frozen=True, slots=True)
class Tuning:
    """What `tuning()` found: tables to set, advice about the server, snapshots held right now.

    Unless it `sees_all_sessions`, a snapshot of somebody else's session may not be among them.
    """

    tables: tuple[TableTuning, ...]
    server: tuple[ServerAdvice, ...]
    held: tuple[HeldSnapshot, ...]
    sees_all_sessions: bool


@dataclass(frozen=True, slots=True)
class _Rule:
    """What a setting of the server should be, and what is as good."""

    name: str
    value: str
    is_good: Callable[[float], bool]
    reason: str


RULES = (
    _Rule("autovacuum", "on", bool, "without it nobody removes dead rows"),
    _Rule("track_counts", "on", bool, "without it autovacuum does not know where rows died"),
    _Rule(
        "autovacuum_naptime",
        "10s",
        lambda seconds: seconds <= 15,
        "a table is looked at only so often, and what dies meanwhile lies in the way of fetches",
    ),
    _Rule(
        "idle_in_transaction_session_timeout",
        "5min",
        lambda milliseconds: 0 < milliseconds <= 600_000,
        "a session that forgot its transaction keeps all dead rows from being removed",
    ),
    _Rule(
        "transaction_timeout",
        "1h",
        lambda milliseconds: milliseconds > 0,
        "so does a report that takes hours; but let backups have the time they need, "
        "by a role of their own",
    ),
    _Rule(
        "old_snapshot_threshold",
        "-1",
        lambda minutes: minutes < 0,
        "it makes long statements fail and others slower; PostgreSQL 17 has it no more",
    ),
    _Rule(
        "max_wal_size",
        "4GB",
        lambda megabytes: megabytes >= 2048,
        "a job writes about 1 kB of log; after each checkpoint whole pages come on top",
    ),
)


def getting_tuning(schemas: Schemas) -> Plan[Tuning]:
    """What should be set, beside what is; changes nothing."""
    tables = yield from _getting_tables(schemas)
    settings = yield storage.get_server_settings([rule.name for rule in RULES])
    held = yield storage.get_held_snapshots(HELD_FOR)
    sees_all = yield storage.find_reading_stats()
    return Tuning(tables, tuple(_advice(settings)), tuple(held), sees_all)


def applying_tuning(schemas: Schemas) -> Plan[list[str]]:
    """Set what is not set yet on the tables that are ours; the names of those that were changed."""
    changed = []
    for each in (yield from _getting_tables(schemas)):
        if each.may_change and not each.is_set:
            yield from _beside_vacuum(TUNED[each.table]())
            changed.append(each.table)
    return changed


def tuning_sql(table: TableTuning, schemas: Schemas) -> str:
    """The statement that sets a table, for people: each setting with its reason and what it is."""
    found = {each.name: each for each in table.settings}

    def with_now(line: re.Match[str]) -> str:
        return line[0] if line["reason"] else f"{line[0]} -- {_now(found[line['name']])}"

    return LINE.sub(with_now, _text(table.table, schemas))


def _now(setting: TableSetting) -> str:
    if setting.is_set:
        return "is set"
    return "is not set" if setting.now is None else f"is {setting.now}"


def _getting_tables(schemas: Schemas) -> Plan[tuple[TableTuning, ...]]:
    found = yield storage.get_storage(schemas, list(TUNED))
    if set(found) != set(TUNED):
        raise SchemaMissing(schemas.shared)
    return tuple(_table(table, found[table], schemas) for table in TUNED)


def _table(table: str, found: Storage, schemas: Schemas) -> TableTuning:
    settings = tuple(_settings(_text(table, schemas), found.settings))
    return TableTuning(table, settings, found.may_change, found.owner)


def _text(table: str, schemas: Schemas) -> str:
    return script_text(f"statements/{TUNED[table]().statement}", schemas).strip()


def _settings(text: str, now: Mapping[str, str]) -> Iterator[TableSetting]:
    reason = ""
    for line in LINE.finditer(text):
        if line["reason"]:
            reason = line["reason"]
        else:
            yield TableSetting(line["name"], line["value"], reason, now.get(line["name"]))


def _advice(settings: Mapping[str, ServerSetting]) -> Iterator[ServerAdvice]:
    for rule in RULES:
        now = settings.get(rule.name)
        if now is not None and not rule.is_good(_plain(now.value)):
            sql = f"{now.change} {rule.name} = '{rule.value}'"
            yield ServerAdvice(rule.name, rule.value, now.shown, rule.reason, sql)


def _beside_vacuum(change: Query[None]) -> Plan[None]:
    # It waits only for a vacuum or another such change; nobody who adds or takes jobs waits for it.
    for attempt in range(TRIES):
        try:
            yield Atomic((storage.wait_for_vacuum(), change))
            return
        except Exception as error:
            if sqlstate_of(error) != LOCK_NOT_AVAILABLE or attempt + 1 == TRIES:
                raise
        yield Pause(PAUSE)


def _plain(value: str) -> float:
    """A number or a switch, however it is spelt."""
    return SWITCHES[value] if value in SWITCHES else float(value)


TUNED: dict[str, Callable[[], Query[Any]]] = {
    "_private_jobs": storage.tune_jobs,
    "_private_job_queues": storage.tune_queues,
}
