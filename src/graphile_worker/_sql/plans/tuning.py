"""Plans for the settings of a queue: read the current ones, compare, and apply.

The statement that sets a table contains the recommended values, each with its reason above it: see
statements/tune_jobs.sql. All of them are storage parameters, which do not affect other workers of
the schema.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from typing import Any

from graphile_worker._sql.identifiers import Schemas
from graphile_worker._sql.queries import storage
from graphile_worker._sql.queries.storage import (
    MAX_TRANSACTION_AGE,
    ServerSetting,
    TableStorage,
    VacuumBlocker,
)
from graphile_worker._sql.query import Atomic, Pause, Plan, Query
from graphile_worker._sql.render import render_script
from graphile_worker._sql.sqlstate import LOCK_NOT_AVAILABLE, get_sqlstate
from graphile_worker._support.lazy_dataclass import LazyDataclass
from graphile_worker.errors import SchemaMissing

MAX_TUNING_ATTEMPTS = 5
RETRY_DELAY_SECONDS = 0.5

SETTING_LINE = re.compile(
    r"^  (?:-- (?P<reason>.+)|(?P<name>\w+) = (?P<value>[\w.]+),?)$", re.MULTILINE
)
BOOLEAN_VALUES = {"on": 1.0, "true": 1.0, "yes": 1.0, "off": 0.0, "false": 0.0, "no": 0.0}


class TableSetting(LazyDataclass):
    """A storage parameter: the recommended value, its reason, and the current value."""

    name: str
    value: str
    reason: str
    current_value: str | None

    @property
    def is_set(self) -> bool:
        """Return whether the current value is the recommended one."""
        current = self.current_value
        return current is not None and _parse_value(current) == _parse_value(self.value)


class TableTuning(LazyDataclass):
    """The settings of a table. Only its owner can change them."""

    table: str
    settings: tuple[TableSetting, ...]
    can_change: bool
    owner: str

    @property
    def is_set(self) -> bool:
        """Return whether all settings have their recommended values."""
        return all(each.is_set for each in self.settings)


class ServerAdvice(LazyDataclass):
    """A server setting that slows down a queue. An administrator runs `sql` to change it."""

    name: str
    value: str
    current_value: str
    reason: str
    sql: str


class Tuning(LazyDataclass):
    """Settings of the tables, advice about the server, and old snapshots.

    Without `can_see_all_sessions`, the snapshots of other roles may be missing.
    """

    tables: tuple[TableTuning, ...]
    server: tuple[ServerAdvice, ...]
    vacuum_blockers: tuple[VacuumBlocker, ...]
    can_see_all_sessions: bool


class _ServerRule(LazyDataclass):
    """The recommended value of a server setting, and which values are as good."""

    name: str
    value: str
    is_good: Callable[[float], bool]
    reason: str


SERVER_RULES = (
    _ServerRule("autovacuum", "on", bool, "without it dead rows are not removed"),
    _ServerRule(
        "track_counts",
        "on",
        bool,
        "without it autovacuum does not know which tables have dead rows",
    ),
    _ServerRule(
        "autovacuum_naptime",
        "10s",
        lambda seconds: seconds <= 15,
        "autovacuum checks a table at this interval; until then dead rows slow down fetches",
    ),
    _ServerRule(
        "idle_in_transaction_session_timeout",
        "5min",
        lambda milliseconds: 0 < milliseconds <= 600_000,
        "a session that is idle in a transaction keeps dead rows from being removed",
    ),
    _ServerRule(
        "transaction_timeout",
        "1h",
        lambda milliseconds: milliseconds > 0,
        "so does a report that takes hours; but let backups have the time they need, "
        "with a separate role",
    ),
    _ServerRule(
        "old_snapshot_threshold",
        "-1",
        lambda minutes: minutes < 0,
        "it makes long statements fail and others slower; PostgreSQL 17 removed it",
    ),
    _ServerRule(
        "max_wal_size",
        "4GB",
        lambda megabytes: megabytes >= 2048,
        "a job writes about 1 kB of WAL, and whole pages after each checkpoint",
    ),
)


def plan_get_tuning(
    schemas: Schemas, max_transaction_age: timedelta = MAX_TRANSACTION_AGE
) -> Plan[Tuning]:
    """Compare the current settings with the recommended ones, without changing them."""
    tables = yield from _plan_get_tables(schemas)
    settings = yield storage.get_server_settings([rule.name for rule in SERVER_RULES])
    blockers = yield storage.get_vacuum_blockers(max_transaction_age)
    can_see_all = yield storage.can_read_all_stats()
    return Tuning(tables, tuple(_build_advice(settings)), tuple(blockers), can_see_all)


def plan_apply_tuning(schemas: Schemas, max_attempts: int = MAX_TUNING_ATTEMPTS) -> Plan[list[str]]:
    """Apply the settings to the tables that this role owns, and return the changed tables."""
    changed = []
    for each in (yield from _plan_get_tables(schemas)):
        if each.can_change and not each.is_set:
            yield from _plan_change_table(TUNING_STATEMENTS[each.table](), max_attempts)
            changed.append(each.table)
    return changed


def render_tuning_sql(table: TableTuning, schemas: Schemas) -> str:
    """Render the statement that sets a table, each setting with its reason and current value."""
    settings = {each.name: each for each in table.settings}

    def append_state(line: re.Match[str]) -> str:
        name = line["name"]
        return line[0] if line["reason"] else f"{line[0]} -- {_format_state(settings[name])}"

    return SETTING_LINE.sub(append_state, _render_statement(table.table, schemas))


def _format_state(setting: TableSetting) -> str:
    if setting.is_set:
        return "is set"
    return "is not set" if setting.current_value is None else f"is {setting.current_value}"


def _plan_get_tables(schemas: Schemas) -> Plan[tuple[TableTuning, ...]]:
    storages = yield storage.get_storage(schemas, list(TUNING_STATEMENTS))
    if set(storages) != set(TUNING_STATEMENTS):
        raise SchemaMissing(schemas.shared)
    return tuple(
        _build_table_tuning(table, storages[table], schemas) for table in TUNING_STATEMENTS
    )


def _build_table_tuning(table: str, stored: TableStorage, schemas: Schemas) -> TableTuning:
    settings = tuple(_parse_settings(_render_statement(table, schemas), stored.settings))
    return TableTuning(table, settings, stored.can_change, stored.owner)


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
        setting = settings.get(rule.name)
        if setting is not None and not rule.is_good(_parse_value(setting.value)):
            sql = f"{setting.change_prefix} {rule.name} = '{rule.value}'"
            yield ServerAdvice(rule.name, rule.value, setting.display_value, rule.reason, sql)


def _plan_change_table(change: Query[None], max_attempts: int) -> Plan[None]:
    # The change waits only for a vacuum or another change. No session that uses jobs waits for it.
    for attempt in range(max_attempts):
        try:
            yield Atomic((storage.set_vacuum_lock_timeout(), change))
            return
        except Exception as error:
            if get_sqlstate(error) != LOCK_NOT_AVAILABLE or attempt + 1 == max_attempts:
                raise
        yield Pause(RETRY_DELAY_SECONDS)


def _parse_value(value: str) -> float:
    # A number or a switch, in any spelling of PostgreSQL.
    return BOOLEAN_VALUES[value] if value in BOOLEAN_VALUES else float(value)


TUNING_STATEMENTS: dict[str, Callable[[], Query[Any]]] = {
    "_private_jobs": storage.tune_jobs,
    "_private_job_queues": storage.tune_queues,
}
