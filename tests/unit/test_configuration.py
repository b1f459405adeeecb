"""Settings from the config file, the environment, an app and flags: precedence and errors."""

import itertools
import json
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal, get_args, get_type_hints

import click
import pytest
from click.testing import CliRunner, Result

from graphile_worker import App, ConfigurationError, WorkerOptions
from graphile_worker._cli.main import command
from graphile_worker._cli.settings.flags import current_settings
from graphile_worker._cli.settings.layers import Settings, SettingSource, SettingValue
from graphile_worker._db.conninfo import redact_secrets
from graphile_worker._settings import definitions
from graphile_worker._settings.definitions import (
    SETTINGS,
    CommandOptions,
    Setting,
    SettingKind,
    iter_settings,
)
from graphile_worker._settings.values import parse_text, parse_toml, to_json_value
from graphile_worker._support.durations import format_exact_duration, parse_duration
from graphile_worker._support.option_fields import option

CANARY = "s3cr3t-canary"


class Sources:
    """A directory with a config file, and an environment."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self._monkeypatch = monkeypatch

    def write(self, text: str, name: str = "graphile-worker.toml") -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text), encoding="utf-8")
        return path

    def set_variable(self, name: str, value: str) -> None:
        self._monkeypatch.setenv(name, value)

    def clear(self, setting: Setting) -> None:
        """Remove the config file and the variable of a setting."""
        (self.folder / "graphile-worker.toml").unlink(missing_ok=True)
        self._monkeypatch.delenv(setting.variable, raising=False)

    def collect(self, *flags: str) -> Settings:
        """Return the settings that the real command collects."""
        with command.make_context("graphile-worker", list(flags)):
            return current_settings()

    def error(self, *flags: str) -> str:
        with pytest.raises(ConfigurationError) as raised:
            self.collect(*flags)
        assert "\n" not in str(raised.value)
        return str(raised.value)

    def config(self, *arguments: str) -> Result:
        return CliRunner().invoke(command, ["config", *arguments])

    def effective(self, *arguments: str) -> dict[str, Any]:
        done = self.config("--json", *arguments)
        assert done.exit_code == 0, done.output or done.exception
        settings: dict[str, Any] = json.loads(done.stdout)
        return settings


@pytest.fixture
def sources(empty_environment: Path, monkeypatch: pytest.MonkeyPatch) -> Sources:
    return Sources(empty_environment, monkeypatch)


# Precedence: every setting, in every combination of sources


def samples(setting: Setting) -> tuple[Any, Any, Any]:
    """Return a value of the file, one of the environment and one of the flag, as in TOML."""
    match setting.kind:
        case SettingKind.TEXT if setting.name == "shards":
            return "a=postgres:///one", "a=postgres:///two", "b=postgres:///three"
        case SettingKind.TEXT:
            return "one", "two", "three"
        case SettingKind.PATH:
            return "/one", "/two", "/three"
        case SettingKind.NUMBER:
            # At least the minimum of every setting.
            return 211, 212, 213
        case SettingKind.DURATION:
            return "1m30s", "1500ms", "2d"
        case SettingKind.CHOICE:
            first, *_, last = setting.choices
            return first, last, first
        case SettingKind.LIST:
            return ["a"], ["b", "c d"], ["*"]
        case SettingKind.SWITCH | SettingKind.GROUP:
            return True, False, True


def as_text(value: Any) -> str:
    if isinstance(value, list):
        return ",".join(value)
    return json.dumps(value) if not isinstance(value, str) else value


def as_flags(setting: Setting, value: Any) -> list[str]:
    if setting.is_toggle:
        return [setting.flag if value else f"--no-{setting.flag[2:]}"]
    return [setting.flag, as_text(value)]


def toml(name: str, value: Any) -> str:
    *tables, key = name.split(".")
    head = f"[{'.'.join(tables)}]\n" if tables else ""
    return f"{head}{key} = {json.dumps(value)}\n"


SOURCES = ("file", "environment", "flag")
COMBINATIONS = [
    [source for source, is_used in zip(SOURCES, used, strict=True) if is_used]
    for used in itertools.product((False, True), repeat=3)
]


@pytest.mark.single_version
@pytest.mark.parametrize("setting", SETTINGS.values(), ids=SETTINGS)
def test_flags_override_variables_override_the_file_overrides_defaults(sources, setting):
    for used, swapped in itertools.product(COMBINATIONS, (False, True)):
        assert_precedence(sources, setting, used, swapped)
        sources.clear(setting)


def assert_precedence(sources: Sources, setting: Setting, used: list[str], swapped: bool) -> None:
    first, second, third = samples(setting)
    # A switch has two values: each source gives either of them once.
    values = dict(
        zip(SOURCES, (second, third, second) if swapped else (first, second, third), strict=True)
    )
    flags: list[str] = []
    if "file" in used:
        sources.write(toml(setting.name, values["file"]))
    if "environment" in used:
        sources.set_variable(setting.variable, as_text(values["environment"]))
    if "flag" in used:
        flags = as_flags(setting, values["flag"])

    found = sources.collect(*flags).values.get(setting.name)

    if not used:
        assert found is None
        return
    winner = used[-1]
    where = {
        "file": "graphile-worker.toml",
        "environment": setting.variable,
        "flag": flags[0] if flags else "",
    }
    value = parse_toml(setting, values[winner], sources.folder)
    assert found == SettingValue(value, SettingSource(winner), where[winner]), (used, swapped)


@pytest.mark.parametrize("setting", SETTINGS.values(), ids=SETTINGS)
def test_a_flag_sets_its_setting_and_turns_its_groups_on(sources, setting):
    value, _, _ = samples(setting)

    settings = sources.collect(*as_flags(setting, value))
    read = {name: each.value for name, each in settings.values.items()}

    assert read.pop(setting.name) == parse_toml(setting, value, sources.folder)
    # Its groups are on, and nothing else is set.
    assert read == dict.fromkeys((each for each in setting.parent_groups if each in SETTINGS), True)


def fields_of(options: type, inside: str = "") -> Iterator[str]:
    """Yield every field that can be set, found without `iter_settings`."""
    hints = get_type_hints(options)
    for field in fields(options):
        parts: list[Any] = [each for each in get_args(hints[field.name]) if is_dataclass(each)]
        if is_dataclass(hints[field.name]):
            parts = [hints[field.name]]
        else:
            yield inside + field.name
        for part in parts:
            yield from fields_of(part, f"{inside}{field.name}.")


@pytest.mark.parametrize("options", [WorkerOptions, CommandOptions])
def test_every_field_of_the_options_is_a_setting(options):
    assert {*fields_of(options)} == {each.name for each in iter_settings(options)}
    assert {*fields_of(options)} <= {*SETTINGS}


def test_no_two_settings_share_a_name_a_flag_or_a_variable():
    count = sum(len([*iter_settings(root)]) for root in definitions.OPTION_CLASSES)
    parameters = command.get_params(click.Context(command, help_option_names=["-h", "--help"]))
    flags = [flag for each in parameters for flag in (*each.opts, *each.secondary_opts)]

    assert len(SETTINGS) == count
    assert len({each.variable for each in SETTINGS.values()}) == count
    assert len({*flags}) == len(flags)


@pytest.mark.parametrize(
    ("name", "flags", "variable"),
    [
        ("connection", ("-c", "--connection"), "DATABASE_URL"),
        ("schema", ("-s", "--schema"), "GRAPHILE_WORKER_SCHEMA"),
        ("concurrency", ("-j", "--jobs"), "GRAPHILE_WORKER_CONCURRENCY"),
        ("max_pool_size", ("-m", "--max-pool-size"), "GRAPHILE_WORKER_MAX_POOL_SIZE"),
        ("app", ("--app",), "GRAPHILE_WORKER_APP"),
        (
            "recovery.lease_duration",
            ("--lease-duration",),
            "GRAPHILE_WORKER_RECOVERY_LEASE_DURATION",
        ),
    ],
)
def test_flags_and_variables_follow_from_the_name_of_the_setting(name, flags, variable):
    assert (SETTINGS[name].flags, SETTINGS[name].variable) == (flags, variable)


@dataclass(frozen=True, kw_only=True)
class Inner:
    wait: timedelta | None = option(None, help="Delay")


@dataclass(frozen=True, kw_only=True)
class Outer:
    always: Inner = option(Inner(), help="A group that is always on")
    sometimes: Inner | None = option(None, help="A group")
    mode: Literal["slow", "fast"] = option("slow", help="Mode")


@dataclass(frozen=True, kw_only=True)
class Strange:
    when: complex = option(0j, help="Time")


def test_a_new_option_becomes_a_setting():
    found = {each.name: (each.kind, each.can_be_off) for each in iter_settings(Outer)}

    assert found == {
        "always.wait": (SettingKind.DURATION, True),
        "sometimes": (SettingKind.GROUP, True),
        "sometimes.wait": (SettingKind.DURATION, True),
        "mode": (SettingKind.CHOICE, False),
    }


def test_groups_are_built_from_the_settings_in_them():
    wait = timedelta(seconds=1)

    def build(**values: Any) -> Outer:
        return Outer(
            **definitions.build_arguments(
                Outer, {n.replace("__", "."): v for n, v in values.items()}
            )
        )

    assert build() == Outer()
    assert build(always__wait=wait) == Outer(always=Inner(wait=wait))
    assert build(sometimes=True) == Outer(sometimes=Inner())
    assert build(sometimes=False, sometimes__wait=wait) == Outer()


def test_an_option_of_an_unknown_type_is_a_type_error():
    with pytest.raises(TypeError, match="complex"):
        list(iter_settings(Strange))


# Groups


def test_setting_a_field_of_a_group_overrides_off_of_a_lower_source(sources):
    sources.write("recovery = false")
    assert sources.collect().worker_options.recovery is None

    found = sources.collect("--lease-duration", "5s").worker_options.recovery

    assert found is not None
    assert found.lease_duration == timedelta(seconds=5)


def test_turning_a_group_off_overrides_its_fields_of_a_lower_source(sources):
    sources.write("[recovery]\nlease_duration = '5s'\n[local_queue.refetch_delay]\nduration = '1s'")
    sources.set_variable("GRAPHILE_WORKER_LOCAL_QUEUE", "off")

    found = sources.effective("--no-recovery")

    assert found["recovery"] == {"value": False, "source": "flag", "where": "--no-recovery"}
    assert found["local_queue"]["where"] == "GRAPHILE_WORKER_LOCAL_QUEUE"
    # Its fields have no effect.
    assert [name for name in found if name.startswith(("recovery.", "local_queue."))] == []


def test_an_empty_table_turns_its_group_on(sources):
    sources.write("[local_queue]\nsize = 10\n[local_queue.refetch_delay]")

    queue = sources.collect().worker_options.local_queue

    assert queue is not None
    assert queue.refetch_delay is not None


def test_variables_that_contradict_each_other_are_rejected(sources):
    sources.set_variable("GRAPHILE_WORKER_RECOVERY", "off")
    sources.set_variable("GRAPHILE_WORKER_RECOVERY_LEASE_DURATION", "5s")

    assert sources.error() == (
        "GRAPHILE_WORKER_RECOVERY and GRAPHILE_WORKER_RECOVERY_LEASE_DURATION exclude each "
        "other. Remove one."
    )


# The tasks


@pytest.mark.feature("F155")
def test_a_file_names_the_app_or_the_folder_not_both(sources):
    sources.write("app = 'shop:app'\ntasks = 'jobs'")

    assert sources.error() == (
        "graphile-worker.toml: app and tasks exclude each other. Remove one."
    )


@pytest.mark.feature("F155")
def test_flags_name_the_app_or_the_folder_not_both(sources):
    error = sources.error("--app", "shop:app", "--tasks", "jobs")

    assert error == "--app and --tasks exclude each other. Remove one."


@pytest.mark.feature("F155")
def test_variables_name_the_app_or_the_folder_not_both(sources):
    sources.set_variable("GRAPHILE_WORKER_APP", "shop:app")
    sources.set_variable("GRAPHILE_WORKER_TASKS", "jobs")

    error = sources.error()

    assert error == (
        "GRAPHILE_WORKER_APP and GRAPHILE_WORKER_TASKS exclude each other. Remove one."
    )


def test_of_an_app_and_a_folder_the_higher_source_takes_precedence(sources):
    sources.write("app = 'shop:app'")
    sources.set_variable("GRAPHILE_WORKER_TASKS", "jobs")

    from_environment = sources.collect()
    from_flag = sources.collect("--app", "other")

    assert (from_environment.value("app"), from_environment.value("tasks")) == (None, Path("jobs"))
    assert (from_flag.value("app"), from_flag.value("tasks")) == ("other", None)


def test_an_app_overrides_variables_and_flags_override_the_app(sources):
    sources.write("connection = 'file'\nschema = 'file'\nuse_local_time = false")
    sources.set_variable("DATABASE_URL", "variable")
    app = App("app", schema="app", use_local_time=True, prepared_statements=False)

    above = sources.collect("--app", "shop").with_app(app)
    below = sources.collect("--app", "shop", "-c", "flag", "--no-use-local-time").with_app(app)

    assert above.values["connection"] == SettingValue("app", SettingSource.APP, "app shop")
    assert (above.worker_options.schema, above.worker_options.use_local_time) == ("app", True)
    assert above.worker_options.prepared_statements is False
    assert below.value("connection") == "flag"
    assert below.worker_options.use_local_time is False


def test_an_app_without_options_changes_no_setting(sources):
    sources.set_variable("DATABASE_URL", "variable")

    settings = sources.collect("--app", "shop")

    assert settings.with_app(App()).values == settings.values


# The config file


def test_graphile_worker_toml_takes_precedence_over_pyproject_toml(sources):
    sources.write("concurrency = 2")
    sources.write("[tool.graphile-worker]\nconcurrency = 3", "pyproject.toml")

    found = sources.collect()

    assert found.values["concurrency"] == SettingValue(
        2, SettingSource.FILE, "graphile-worker.toml"
    )


def test_the_table_in_pyproject_toml_is_read(sources):
    sources.write(
        """
        [project]
        dependencies = ["graphile-worker"]

        [tool.graphile-worker]
        concurrency = 3

        [tool.graphile-worker.recovery]
        lease_duration = "1m"
        """,
        "pyproject.toml",
    )

    found = sources.collect()

    assert found.values["concurrency"] == SettingValue(3, SettingSource.FILE, "pyproject.toml")
    assert found.value("recovery.lease_duration") == timedelta(minutes=1)


@pytest.mark.parametrize(
    "text",
    ["[tool.other]\nkey = 1", "[project]\ndependencies = ['graphile-worker']", "not TOML at all"],
)
def test_a_pyproject_toml_without_the_table_has_no_settings(sources, text):
    sources.write(text, "pyproject.toml")

    assert sources.collect().values == {}


def test_paths_in_a_config_file_are_relative_to_it(sources):
    sources.write("tasks = 'jobs'\ncrontab = '/etc/crontab'", "deploy/worker.toml")

    found = sources.collect("-C", "deploy/worker.toml")

    assert found.values["tasks"] == SettingValue(
        Path("deploy/jobs"), SettingSource.FILE, "deploy/worker.toml"
    )
    assert found.value("crontab") == Path("/etc/crontab")


def test_a_pyproject_toml_given_by_a_flag_must_have_the_table(sources):
    sources.write("[tool.other]", "else/pyproject.toml")
    assert sources.error("-C", "else/pyproject.toml") == (
        "else/pyproject.toml has no table [tool.graphile-worker]. Add it, or pass another file."
    )
    sources.write("[tool.graphile-worker]\nconcurrency = 3", "else/pyproject.toml")

    assert sources.collect("-C", "else/pyproject.toml").value("concurrency") == 3


def test_keys_can_have_hyphens(sources):
    sources.write("poll-interval = '1s'\n[local-queue]\nmax-bytes = 5")

    found = sources.collect()

    assert found.value("poll_interval") == timedelta(seconds=1)
    assert found.value("local_queue.max_bytes") == 5


@pytest.mark.parametrize("arguments", [["-C", "a.toml", "config"], ["config", "-C", "a.toml"]])
def test_the_config_flag_works_before_and_after_a_subcommand(sources, arguments):
    sources.write("concurrency = 7", "a.toml")

    done = CliRunner().invoke(command, [*arguments, "--json"])

    assert json.loads(done.stdout)["concurrency"]["value"] == 7


def test_without_a_config_file_the_toml_parser_is_not_imported(sources, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "tomllib", None)

    assert sources.collect().values == {}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("concurrency = 1\nconcurrency =", "bad.toml is not TOML: Invalid value (at line 2"),
        ("a = '''\n\n", "bad.toml is not TOML: "),
        ("\udcff", "bad.toml is not UTF-8"),
    ],
)
def test_a_file_that_is_not_toml_is_rejected_with_the_line(sources, text, message):
    (sources.folder / "bad.toml").write_bytes(text.encode(errors="surrogateescape"))

    error = sources.error("-C", "bad.toml")

    assert error.startswith(message)
    assert "UTF-8" in message or "at line " in error


@pytest.mark.parametrize(
    ("path", "why"),
    [("nowhere.toml", "No such file or directory"), (".", "Is a directory")],
)
def test_a_config_file_given_by_a_flag_must_exist(sources, path, why):
    assert sources.error("-C", path) == f"{path} cannot be read: {why}"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("concurrenc = 1", "unknown setting 'concurrenc', did you mean 'concurrency'?"),
        ("jobs = 1", "unknown setting 'jobs', did you mean 'concurrency'?"),
        ("pollInterval = 2000", "unknown setting 'pollInterval', did you mean 'poll_interval'?"),
        (
            "[recovery]\nlease_durations = '1s'",
            "unknown setting 'recovery.lease_durations', did you mean 'recovery.lease_duration'?",
        ),
        ("[recover]\nlease_duration = '1s'", "unknown setting 'recover', did you mean 'recovery'?"),
        ("zzz = 1", "unknown setting 'zzz', see `graphile-worker config`"),
        ("poll-interval = '1s'\npoll_interval = '2s'", "poll_interval is set twice"),
    ],
)
def test_an_unknown_key_is_rejected_with_the_most_similar_setting(sources, text, message):
    sources.write(text)

    assert sources.error().startswith(f"graphile-worker.toml: {message}")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("concurrency = '4'", 'concurrency: expected a whole number from 1, got "4"'),
        ("concurrency = true", "concurrency: expected a whole number from 1, got true"),
        ("concurrency = 1.5", "concurrency: expected a whole number from 1, got 1.5"),
        ("concurrency = 0", "concurrency: expected a whole number from 1, got 0"),
        ("max_pool_size = 1", "max_pool_size: expected a whole number from 2, got 1"),
        ("processes = 0", "processes: expected a whole number from 1, or off, got 0"),
        ("listen = 1", "listen: expected true or false, got 1"),
        ("listen = 'off'", 'listen: expected true or false, got "off"'),
        ("schema = 5", "schema: expected text, got 5"),
        ("tasks = ''", 'tasks: expected text, got ""'),
        ("log_format = 'xml'", 'log_format: expected text or json, got "xml"'),
        ("recovery = 5", "recovery: expected true or false, or a table, got 5"),
        (
            "[local_queue]\nsize = 'x'",
            "local_queue.size: expected a whole number from 1, or off, got",
        ),
        ("[concurrency]\na = 1", 'concurrency: expected a whole number from 1, got {"a": 1}'),
        (
            "cancel_after = 'soon'",
            "cancel_after: expected a duration, for example 500ms, 2s, 1m30s, 1h or 1d",
        ),
        ("cancel_after = 2020-01-01", "cancel_after: expected a duration"),
        ("cancel_after = true", "cancel_after: expected a duration"),
    ],
)
def test_a_value_of_the_wrong_type_is_rejected_with_the_expected_one(sources, text, message):
    sources.write(text)

    assert sources.error().startswith(f"graphile-worker.toml: {message}")


@pytest.mark.parametrize("value", ["2000", "2.5", "'2000'", "0"])
def test_a_time_in_a_file_needs_a_unit(sources, value):
    sources.write(f"poll_interval = {value}")

    number = value.strip("'")
    assert sources.error().endswith(f'. Add a unit, for example "{number}ms".')


@pytest.mark.parametrize("text", ["many", "1.5", "", " 4", "1_000", "٤"])
def test_an_invalid_value_is_rejected_with_the_name_of_its_variable(sources, text):
    sources.set_variable("GRAPHILE_WORKER_CONCURRENCY", text)

    if not text:
        # It counts as not set.
        assert sources.collect().values == {}
        return
    error = sources.error()
    assert error.startswith("GRAPHILE_WORKER_CONCURRENCY: expected a whole number from 1, got ")


# Values


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("500ms", 0.5),
        ("2s", 2),
        ("0s", 0),
        ("1.5s", 1.5),
        ("0.5ms", 0.0005),
        ("1m30s", 90),
        ("1m 30s", 90),
        ("5m", 300),
        ("1h", 3600),
        ("1h1s", 3601),
        ("1d", 86400),
        ("1d2h3m4s5ms", 93784.005),
        ("1s500ms", 1.5),
        ("90m", 5400),
    ],
)
def test_a_time_is_written_with_units(text, seconds):
    span = parse_duration(text)

    assert span == timedelta(seconds=seconds)
    assert parse_duration(format_exact_duration(span)) == span


@pytest.mark.parametrize(
    "text",
    ["", " ", "s", "2", "2 s", "2S", "2sec", "1s1m", "1s1s", "-1s", "1.s", ".5s", "1e3s", "2s!",
     "1w", "٢s", "1,5s", "9" * 15 + "d", "9" * 400 + "s", "inf", "nans"],
)  # fmt: skip
def test_other_text_is_not_a_time(text):
    assert parse_duration(text) is None


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("2000", timedelta(seconds=2)),
        ("0", timedelta(0)),
        ("2s", timedelta(seconds=2)),
        ("off", None),
        ("OFF", None),
    ],
)
def test_flags_and_variables_without_a_unit_are_in_milliseconds(sources, text, value):
    sources.set_variable("GRAPHILE_WORKER_SHUTDOWN_TIMEOUT", text)

    found = sources.collect("--cancel-after", text)

    assert (found.value("cancel_after"), found.value("shutdown_timeout")) == (value, value)
    assert {"cancel_after", "shutdown_timeout"} <= found.values.keys()


@pytest.mark.parametrize("text", ["9" * 18, "-" + "9" * 18])
def test_a_time_out_of_range_is_rejected(sources, text):
    sources.set_variable("GRAPHILE_WORKER_SHUTDOWN_TIMEOUT", text)

    assert "expected a duration" in sources.error()


@pytest.mark.parametrize("value", ["false", "'off'"])
def test_a_file_turns_settings_off(sources, value):
    sources.write(f"cancel_after = {value}\nlocal_queue = {value}\nprocesses = {value}")

    found = sources.collect()

    assert found.worker_options.cancel_after is None
    assert found.worker_options.local_queue is None
    assert found.command_options.processes is None


@pytest.mark.parametrize("value", ["false", "'off'"])
def test_a_setting_that_cannot_be_off_rejects_off(sources, value):
    sources.write(f"poll_interval = {value}")

    assert "poll_interval: expected a duration" in sources.error()


@pytest.mark.parametrize(
    ("text", "value"),
    [("true", True), ("1", True), ("yes", True), ("On", True)]
    + [("false", False), ("0", False), ("NO", False), ("off", False)],
)
def test_a_variable_turns_a_setting_on_and_off_with_these_words(sources, text, value):
    sources.set_variable("GRAPHILE_WORKER_LISTEN", text)
    sources.set_variable("GRAPHILE_WORKER_RECOVERY", text)

    found = sources.collect()

    assert (found.value("listen"), found.value("recovery")) == (value, value)


@pytest.mark.parametrize("setting", SETTINGS.values(), ids=SETTINGS)
def test_values_that_config_prints_can_be_written_into_a_file(sources, setting):
    for sample in samples(setting):
        value = parse_toml(setting, sample, sources.folder)
        plain = to_json_value(setting, value)

        # Passwords are not printed.
        if setting.name not in ("connection", "shards"):
            assert parse_toml(setting, plain, sources.folder) == value
            assert parse_text(setting, as_text(plain)) == value


# The command config


def test_config_prints_each_setting_with_its_source(sources):
    sources.write("concurrency = 4\n[recovery]\nlease_duration = '1m'")
    sources.set_variable("GRAPHILE_WORKER_POLL_INTERVAL", "1500")

    done = sources.config("--no-listen", "-m", "7")

    rows = {line.split()[0]: line.split()[1:] for line in done.stdout.splitlines()}
    assert done.exit_code == 0
    assert rows["concurrency"] == ["4", "graphile-worker.toml"]
    assert rows["recovery.lease_duration"] == ["1m", "graphile-worker.toml"]
    assert rows["poll_interval"] == ["1s500ms", "GRAPHILE_WORKER_POLL_INTERVAL"]
    assert rows["listen"] == ["off", "--no-listen"]
    assert rows["max_pool_size"] == ["7", "--max-pool-size"]
    assert rows["shutdown_timeout"] == ["25s", "default"]
    assert rows["health_port"] == ["-", "default"]
    columns = {line.index(line.split()[-1], 30) for line in done.stdout.splitlines()}
    assert len(columns) == 1


def test_config_prints_the_options_of_the_app(sources, monkeypatch):
    sources.write("from graphile_worker import App\n\nq = App('shop', schema='jobs')", "confapp.py")
    monkeypatch.syspath_prepend(sources.folder)

    found = sources.effective("--app", "confapp:q")

    assert found["schema"] == {"value": "jobs", "source": "app", "where": "app confapp:q"}
    assert found["connection"]["value"] == "dbname=shop"


def test_config_prints_the_tasks_folder_and_the_crontab_of_the_directory(sources):
    sources.write("", "tasks/one.py")
    sources.write("", "crontab")

    found = sources.effective()

    assert found["tasks"] == {"value": "tasks", "source": "default", "where": None}
    assert found["crontab"]["value"] == "crontab"


def test_config_prints_the_database_of_pgdatabase(sources):
    sources.set_variable("PGDATABASE", "shop")

    assert sources.effective()["connection"] == {
        "value": "dbname=shop",
        "source": "environment",
        "where": "PGDATABASE",
    }


@pytest.mark.parametrize(
    "flags",
    [["--max-memory", "5"], ["-c", "host=a dbname"], ["--lease-duration", "1"]],
)
def test_config_rejects_invalid_settings(sources, flags):
    done = sources.config(*flags)

    assert isinstance(done.exception, ConfigurationError)
    assert done.stdout == ""


def test_a_flag_below_the_minimum_is_a_usage_error(sources):
    done = sources.config("--jobs", "0")

    assert done.exit_code == click.UsageError.exit_code
    assert "--jobs': expected a whole number from 1, got 0." in done.output


# Secrets

SECRETS = [
    f"postgres://me:{CANARY}@db.example:5432/shop",
    f"postgresql://db.example/shop?user=me&password={CANARY}",
    f"host=db.example password={CANARY} dbname=shop",
    f"host=db.example password='{CANARY} with blanks' sslpassword={CANARY}",
    f"postgres://me:{CANARY}/more@db.example/shop",
    f"postgres://me:more@{CANARY}@db.example/shop",
    f"postgres://me:12/{CANARY}@db.example/shop",
    f"host=db.example password={CANARY} nonsense",
]


@pytest.mark.parametrize("connection", SECRETS)
@pytest.mark.parametrize("where", ["flag", "variable", "file", "wrong type", "wrong key", "app"])
def test_a_password_is_never_shown(sources, monkeypatch, connection, where):
    flags: list[str] = []
    if where == "flag":
        flags = ["-c", connection]
    elif where == "variable":
        sources.set_variable("DATABASE_URL", connection)
    elif where == "app":
        sources.write(f"from graphile_worker import App\napp = App({connection!r})", "secretapp.py")
        monkeypatch.syspath_prepend(sources.folder)
        monkeypatch.delitem(__import__("sys").modules, "secretapp", raising=False)
        flags = ["--app", "secretapp"]
    else:
        key = "connections" if where == "wrong key" else "connection"
        value = [connection] if where == "wrong type" else connection
        sources.write(f"{key} = {json.dumps(value)}")

    for format_flags in ([], ["--json"]):
        done = sources.config(*format_flags, *flags)

        assert CANARY not in done.output
        assert CANARY not in f"{done.exception}"
        if "wrong" in where:
            assert isinstance(done.exception, ConfigurationError)


def test_only_the_password_of_a_connection_is_hidden():
    redacted = redact_secrets(f"postgres://me:{CANARY}@db.example:5433/shop?sslmode=require")

    assert sorted(redacted.split()) == [
        *("dbname=shop", "host=db.example", "password=***", "port=5433"),
        *("sslmode=require", "user=me"),
    ]


def test_a_bare_name_is_shown_as_dbname():
    assert redact_secrets("shop") == "dbname=shop"
