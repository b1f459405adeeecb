"""Plans for settings that suit a queue: what should be set, what is set, and setting it.

What should be set for a table stands in the statement that sets it, each with its reason above: see
statements/tune_jobs.sql. All of them are storage parameters, so other workers of the same schema
are not concerned, whatever their language.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from graphile_worker._sql.identifiers import Schemas
from graphile_worker._sql.queries import storage
from graphile_worker._sql.queries.storage import ServerSetting, TableStorage, VacuumBlocker
from graphile_worker._sql.query import Atomic, Pause, Plan, Query
from graphile_worker._sql.render import render_script
from graphile_worker._sql.sqlstate import LOCK_NOT_AVAILABLE, get_sqlstate
from graphile_worker.errors import SchemaMissing

MAX_TUNING_ATTEMPTS = 5
RETRY_DELAY_SECONDS = 0.5

# A transaction that is younger does no harm yet.
MIN_BLOCKER_SECONDS = 5

SETTING_LINE = re.compile(
    r"^  (?:-- (?P<reason>.+)|(?P<name>\w+) = (?P<value>[\w.]+),?)$", re.MULTILINE
)
BOOLEAN_VALUES = {"on": 1.0, "true": 1.0, "yes": 1.0, "off": 0.0, "false": 0.0, "no": 0.0}


@dataclass(frozen=True, slots=True)
class TableSetting:
    """A storage parameter: what it should be and why, and what it is (None: not set)."""

    name: str
    value: str
    reason: str
    current_value: str | None

    @property
    def is_set(self) -> bool:
        return self.current_value is not None and _parse_value(self.current_value) == _parse_value(
            self.value
        )


@dataclass(frozen=True, slots=True)
class TableTuning:
    """How a table should be set. Only its owner may change that."""

    table: str
    settings: tuple[TableSetting, ...]
    can_change: bool
    owner: str

    @property
    def is_set(self) -> bool:
        return all(each.is_set for each in self.settings)


@dataclass(frozen=True, slots=True)
class ServerAdvice:
    """A setting of the server that is not good for a queue; `sql` changes it, by who may."""

    name: str
    value: str
    current_value: str
    reason: str
    sql: str


@dataclass(frozen=True, slots=True)
class Tuning:
    """What `tuning()` found: tables to set, advice about the server, snapshots held right now.

    Unless it `can_see_all_sessions`, a snapshot of somebody else's session may not be among them.
    """

    tables: tuple[TableTuning, ...]
    server: tuple[ServerAdvice, ...]
    vacuum_blockers: tuple[VacuumBlocker, ...]
    can_see_all_sessions: bool


@dataclass(frozen=True, slots=True)
class _ServerRule:
    """What a setting of the server should be, and what is as good."""

    name: str
    value: str
    is_good: Callable[[float], bool]
    reason: str


SERVER_RULES = (
    _ServerRule("autovacuum", "on", bool, "without it nobody removes dead rows"),
    _ServerRule("track_counts", "on", bool, "without it autovacuum does not know where rows died"),
    _ServerRule(
        "autovacuum_naptime",
        "10s",
        lambda seconds: seconds <= 15,
        "a table is looked at only so often, and what dies meanwhile lies in the way of fetches",
    ),
    _ServerRule(
        "idle_in_transaction_session_timeout",
        "5min",
        lambda milliseconds: 0 < milliseconds <= 600_000,
        "a session that forgot its transaction keeps all dead rows from being removed",
    ),
    _ServerRule(
        "transaction_timeout",
        "1h",
        lambda milliseconds: milliseconds > 0,
        "so does a report that takes hours; but let backups have the time they need, "
        "by a role of their own",
    ),
    _ServerRule(
        "old_snapshot_threshold",
        "-1",
        lambda minutes: minutes < 0,
        "it makes long statements fail and others slower; PostgreSQL 17 has it no more",
    ),
    _ServerRule(
        "max_wal_size",
        "4GB",
        lambda megabytes: megabytes >= 2048,
        "a job writes about 1 kB of log; after each checkpoint whole pages come on top",
    ),
)


def plan_get_tuning(schemas: Schemas) -> Plan[Tuning]:
    """What should be set, beside what is; changes nothing."""
    tables = yield from _plan_get_tables(schemas)
    settings = yield storage.get_server_settings([rule.name for rule in SERVER_RULES])
    held = yield storage.get_vacuum_blockers(MIN_BLOCKER_SECONDS)
    sees_all = yield storage.can_read_all_stats()
    return Tuning(tables, tuple(_build_advice(settings)), tuple(held), sees_all)


def plan_apply_tuning(schemas: Schemas) -> Plan[list[str]]:
    """Set what is not set yet on the tables that are ours; the names of those that were changed."""
    changed = []
    for each in (yield from _plan_get_tables(schemas)):
        if each.can_change and not each.is_set:
            yield from _plan_change_table(TUNING_STATEMENTS[each.table]())
            changed.append(each.table)
    return changed


def render_tuning_sql(table: TableTuning, schemas: Schemas) -> str:
    """The statement that sets a table, for people: each setting with its reason and what it is."""
    found = {each.name: each for each in table.settings}

    def with_now(line: re.Match[str]) -> str:
        return line[0] if line["reason"] else f"{line[0]} -- {_format_state(found[line['name']])}"

    return SETTING_LINE.sub(with_now, _render_statement(table.table, schemas))


def _format_state(setting: TableSetting) -> str:
    if setting.is_set:
        return "is set"
    return "is not set" if setting.current_value is None else f"is {setting.current_value}"


def _plan_get_tables(schemas: Schemas) -> Plan[tuple[TableTuning, ...]]:
    found = yield storage.get_storage(schemas, list(TUNING_STATEMENTS))
    if set(found) != set(TUNING_STATEMENTS):
        raise SchemaMissing(schemas.shared)
    return tuple(_build_table_tuning(table, found[table], schemas) for table in TUNING_STATEMENTS)


def _build_table_tuning(table: str, found: TableStorage, schemas: Schemas) -> TableTuning:
    settings = tuple(_parse_settings(_render_statement(table, schemas), found.settings))
    return TableTuning(table, settings, found.can_change, found.owner)


def _render_statement(table: str, schemas: Schemas) -> str:
    return render_script(f"statements/{TUNING_STATEMENTS[table]().statement}", schemas).strip()


def _parse_settings(text: str, current: Mapping[str, str]) -> Iterator[TableSetting]:
    reason = ""
    for line in SETTING_LINE.finditer(text):
        if line["reason"]:
            reason = line["reason"]
        else:
            yield TableSetting(line["name"], line["value"], reason, current.get(line["name"]))


def _build_advice(settings: Mapping[str, ServerSetting]) -> Iterator[ServerAdvice]:
    for rule in SERVER_RULES:
        now = settings.get(rule.name)
        if now is not None and not rule.is_good(_parse_value(now.value)):
            sql = f"{now.change_prefix} {rule.name} = '{rule.value}'"
            yield ServerAdvice(rule.name, rule.value, now.display_value, rule.reason, sql)


def _plan_change_table(change: Query[None]) -> Plan[None]:
    # It waits only for a vacuum or another such change; nobody who adds or takes jobs waits for it.
    for attempt in range(MAX_TUNING_ATTEMPTS):
        try:
            yield Atomic((storage.set_vacuum_lock_timeout(), change))
            return
        except Exception as error:
            if get_sqlstate(error) != LOCK_NOT_AVAILABLE or attempt + 1 == MAX_TUNING_ATTEMPTS:
                raise
        yield Pause(RETRY_DELAY_SECONDS)


def _parse_value(value: str) -> float:
    """A number or a switch, however it is spelt."""
    return BOOLEAN_VALUES[value] if value in BOOLEAN_VALUES else float(value)


TUNING_STATEMENTS: dict[str, Callable[[], Query[Any]]] = {
    "_private_jobs": storage.tune_jobs,
    "_private_job_queues": storage.tune_queues,
}
