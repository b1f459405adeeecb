"""Settings from file, environment, app and flags: which one holds, and what is refused."""

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
from graphile_worker._cli.settings import definitions
from graphile_worker._cli.settings.definitions import (
    SETTINGS,
    CommandOptions,
    Setting,
    SettingKind,
    iter_settings,
)
from graphile_worker._cli.settings.flags import current_settings
from graphile_worker._cli.settings.layers import Settings, SettingSource, SettingValue
from graphile_worker._cli.settings.values import parse_text, parse_toml, to_json_value
from graphile_worker._db.conninfo import redact_secrets
from graphile_worker._support.durations import format_exact_duration, parse_duration

CANARY = "s3cr3t-canary"


class Place:
    """A folder, its file and an environment: what do they come to, beside some flags?"""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self._monkeypatch = monkeypatch

    def write(self, text: str, name: str = "graphile-worker.toml") -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text), encoding="utf-8")
        return path

    def set(self, name: str, value: str) -> None:
        self._monkeypatch.setenv(name, value)

    def collected(self, *flags: str) -> Settings:
        """What the real command collects."""
        with command.make_context("graphile-worker", list(flags)):
            return current_settings()

    def refused(self, *flags: str) -> str:
        with pytest.raises(ConfigurationError) as refused:
            self.collected(*flags)
        assert "\n" not in str(refused.value)
        return str(refused.value)

    def config(self, *words: str) -> Result:
        return CliRunner().invoke(command, ["config", *words])

    def in_force(self, *words: str) -> dict[str, Any]:
        done = self.config("--json", *words)
        assert done.exit_code == 0, done.output or done.exception
        found: dict[str, Any] = json.loads(done.stdout)
        return found


@pytest.fixture
def place(nothing_given: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    return Place(nothing_given, monkeypatch)


# Precedence: every setting, in every combination of places


def samples(setting: Setting) -> tuple[Any, Any, Any]:
    """Three values, as a file would have them: of the file, the environment and the flag."""
    match setting.kind:
        case SettingKind.TEXT:
            return "one", "two", "three"
        case SettingKind.PATH:
            return "/one", "/two", "/three"
        case SettingKind.NUMBER:
            return 11, 12, 13
        case SettingKind.DURATION:
            return "1m30s", "1500ms", "2d"
        case SettingKind.CHOICE:
            first, *_, last = setting.choices
            return first, last, first
        case SettingKind.SWITCH | SettingKind.GROUP:
            return True, False, True


def as_text(value: Any) -> str:
    return json.dumps(value) if not isinstance(value, str) else value


def as_flags(setting: Setting, value: Any) -> list[str]:
    if setting.is_toggle:
        return [setting.flag if value else f"--no-{setting.flag[2:]}"]
    return [setting.flag, as_text(value)]


def toml(name: str, value: Any) -> str:
    *tables, key = name.split(".")
    head = f"[{'.'.join(tables)}]\n" if tables else ""
    return f"{head}{key} = {json.dumps(value)}\n"


PLACES = ("file", "environment", "flag")
COMBINATIONS = [
    [place for place, used in zip(PLACES, uses, strict=True) if used]
    for uses in itertools.product((False, True), repeat=3)
]


@pytest.mark.parametrize("places", COMBINATIONS, ids=lambda places: "+".join(places) or "none")
@pytest.mark.parametrize("setting", SETTINGS.values(), ids=SETTINGS)
@pytest.mark.parametrize("turned", [False, True], ids=["", "turned"])
def test_a_flag_stands_above_a_variable_above_the_file_above_the_default(
    place, setting, places, turned
):
    first, second, third = samples(setting)
    # A switch has two values: each place has its turn with either.
    values = dict(
        zip(PLACES, (second, third, second) if turned else (first, second, third), strict=True)
    )
    flags: list[str] = []
    if "file" in places:
        place.write(toml(setting.name, values["file"]))
    if "environment" in places:
        place.set(setting.variable, as_text(values["environment"]))
    if "flag" in places:
        flags = as_flags(setting, values["flag"])

    found = place.collected(*flags).values.get(setting.name)

    if not places:
        assert found is None
        return
    winner = places[-1]
    where = {
        "file": "graphile-worker.toml",
        "environment": setting.variable,
        "flag": flags[0] if flags else "",
    }
    value = parse_toml(setting, values[winner], place.folder)
    assert found == SettingValue(value, SettingSource(winner), where[winner])


@pytest.mark.parametrize("setting", SETTINGS.values(), ids=SETTINGS)
def test_what_is_given_of_a_setting_reaches_the_options(place, setting):
    value, _, _ = samples(setting)

    given = place.collected(*as_flags(setting, value))
    read = {name: each.value for name, each in given.values.items()}

    assert read.pop(setting.name) == parse_toml(setting, value, place.folder)
    # What it holds is on, and nothing else was given.
    assert read == dict.fromkeys((each for each in setting.parent_groups if each in SETTINGS), True)


def fields_of(options: type, inside: str = "") -> Iterator[str]:
    """Every field that can be set, found without the catalogue."""
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
def test_no_field_is_missing_from_the_catalogue(options):
    assert {*fields_of(options)} == {each.name for each in iter_settings(options)}
    assert {*fields_of(options)} <= {*SETTINGS}


def test_no_two_settings_share_a_name_a_flag_or_a_variable():
    count = sum(len([*iter_settings(root)]) for root in definitions.OPTION_CLASSES)
    parameters = command.get_params(click.Context(command))
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
def test_names_follow_one_rule_with_few_exceptions(name, flags, variable):
    assert (SETTINGS[name].flags, SETTINGS[name].variable) == (flags, variable)


@dataclass(frozen=True, kw_only=True)
class Inner:
    wait: timedelta | None = None


@dataclass(frozen=True, kw_only=True)
class Outer:
    always: Inner = Inner()
    sometimes: Inner | None = None
    way: Literal["here", "there"] = "here"


@dataclass(frozen=True, kw_only=True)
class Strange:
    when: complex = 0j


def test_options_that_are_new_become_settings_by_themselves():
    found = {each.name: (each.kind, each.can_be_off) for each in iter_settings(Outer)}

    assert found == {
        "always.wait": (SettingKind.DURATION, True),
        "sometimes": (SettingKind.GROUP, True),
        "sometimes.wait": (SettingKind.DURATION, True),
        "way": (SettingKind.CHOICE, False),
    }


def test_a_part_that_is_always_there_is_made_of_what_was_given(monkeypatch):
    monkeypatch.setattr(definitions, "GROUPS", {"always": Inner, "sometimes": Inner})
    wait = timedelta(seconds=1)

    def made(**given: Any) -> Outer:
        return Outer(
            **definitions.build_arguments(
                Outer, {n.replace("__", "."): v for n, v in given.items()}
            )
        )

    assert made() == Outer()
    assert made(always__wait=wait) == Outer(always=Inner(wait=wait))
    assert made(sometimes=True) == Outer(sometimes=Inner())
    assert made(sometimes=False, sometimes__wait=wait) == Outer()


def test_an_option_of_an_unknown_kind_is_a_mistake_of_ours():
    with pytest.raises(TypeError, match="complex"):
        list(iter_settings(Strange))


# Parts, and what they hold


def test_a_field_in_a_higher_place_switches_its_part_on_again(place):
    place.write("recovery = false")
    assert place.collected().worker_options.recovery is None

    found = place.collected("--lease-duration", "5s").worker_options.recovery

    assert found is not None
    assert found.lease_duration == timedelta(seconds=5)


def test_a_part_that_is_switched_off_in_a_higher_place_is_off(place):
    place.write("[recovery]\nlease_duration = '5s'\n[local_queue.refetch_delay]\nduration = '1s'")
    place.set("GRAPHILE_WORKER_LOCAL_QUEUE", "off")

    found = place.in_force("--no-recovery")

    assert found["recovery"] == {"value": False, "source": "flag", "where": "--no-recovery"}
    assert found["local_queue"]["where"] == "GRAPHILE_WORKER_LOCAL_QUEUE"
    # What it would hold is not in force.
    assert [name for name in found if name.startswith(("recovery.", "local_queue."))] == []


def test_a_table_without_keys_switches_its_part_on(place):
    place.write("[local_queue]\nsize = 10\n[local_queue.refetch_delay]")

    queue = place.collected().worker_options.local_queue

    assert queue is not None
    assert queue.refetch_delay is not None


def test_variables_that_contradict_each_other_are_refused(place):
    place.set("GRAPHILE_WORKER_RECOVERY", "off")
    place.set("GRAPHILE_WORKER_RECOVERY_LEASE_DURATION", "5s")

    assert place.refused() == (
        "GRAPHILE_WORKER_RECOVERY and GRAPHILE_WORKER_RECOVERY_LEASE_DURATION exclude each other"
    )


# Where tasks come from


@pytest.mark.feature("F155")
def test_a_file_names_the_app_or_the_folder_not_both(place):
    place.write("app = 'shop:app'\ntasks = 'jobs'")

    assert place.refused() == "graphile-worker.toml: app and tasks exclude each other"


@pytest.mark.feature("F155")
def test_flags_name_the_app_or_the_folder_not_both(place):
    refused = place.refused("--app", "shop:app", "--tasks", "jobs")

    assert refused == "--app and --tasks exclude each other"


@pytest.mark.feature("F155")
def test_variables_name_the_app_or_the_folder_not_both(place):
    place.set("GRAPHILE_WORKER_APP", "shop:app")
    place.set("GRAPHILE_WORKER_TASKS", "jobs")

    refused = place.refused()

    assert refused == "GRAPHILE_WORKER_APP and GRAPHILE_WORKER_TASKS exclude each other"


def test_of_an_app_and_a_folder_in_two_places_the_higher_one_holds(place):
    place.write("app = 'shop:app'")
    place.set("GRAPHILE_WORKER_TASKS", "jobs")

    from_environment = place.collected()
    from_flag = place.collected("--app", "other")

    assert (from_environment.value("app"), from_environment.value("tasks")) == (None, Path("jobs"))
    assert (from_flag.value("app"), from_flag.value("tasks")) == ("other", None)


def test_what_an_app_says_itself_stands_between_variables_and_flags(place):
    place.write("connection = 'file'\nschema = 'file'\nuse_local_time = false")
    place.set("DATABASE_URL", "variable")
    app = App("app", schema="app", use_local_time=True, prepared_statements=False)

    above = place.collected("--app", "shop").with_app(app)
    below = place.collected("--app", "shop", "-c", "flag", "--no-use-local-time").with_app(app)

    assert above.values["connection"] == SettingValue("app", SettingSource.APP, "app shop")
    assert (above.worker_options.schema, above.worker_options.use_local_time) == ("app", True)
    assert above.worker_options.prepared_statements is False
    assert below.value("connection") == "flag"
    assert below.worker_options.use_local_time is False


def test_an_app_that_names_nothing_leaves_all_as_it_is(place):
    place.set("DATABASE_URL", "variable")

    settings = place.collected("--app", "shop")

    assert settings.with_app(App()).values == settings.values


# The file


def test_a_file_of_its_own_stands_before_that_of_the_project(place):
    place.write("concurrency = 2")
    place.write("[tool.graphile-worker]\nconcurrency = 3", "pyproject.toml")

    found = place.collected()

    assert found.values["concurrency"] == SettingValue(
        2, SettingSource.FILE, "graphile-worker.toml"
    )


def test_the_table_of_the_project_is_read(place):
    place.write(
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

    found = place.collected()

    assert found.values["concurrency"] == SettingValue(3, SettingSource.FILE, "pyproject.toml")
    assert found.value("recovery.lease_duration") == timedelta(minutes=1)


@pytest.mark.parametrize(
    "text",
    ["[tool.other]\nkey = 1", "[project]\ndependencies = ['graphile-worker']", "not TOML at all"],
)
def test_a_project_without_the_table_has_no_settings(place, text):
    place.write(text, "pyproject.toml")

    assert place.collected().values == {}


def test_a_file_may_have_any_name_and_place_and_paths_in_it_begin_there(place):
    place.write("tasks = 'jobs'\ncrontab = '/etc/crontab'", "deploy/worker.toml")

    found = place.collected("-C", "deploy/worker.toml")

    assert found.values["tasks"] == SettingValue(
        Path("deploy/jobs"), SettingSource.FILE, "deploy/worker.toml"
    )
    assert found.value("crontab") == Path("/etc/crontab")


def test_a_project_that_is_named_must_have_the_table(place):
    place.write("[tool.other]", "else/pyproject.toml")
    assert place.refused("-C", "else/pyproject.toml") == (
        "else/pyproject.toml has no table [tool.graphile-worker]"
    )
    place.write("[tool.graphile-worker]\nconcurrency = 3", "else/pyproject.toml")

    assert place.collected("-C", "else/pyproject.toml").value("concurrency") == 3


def test_keys_may_be_written_with_hyphens(place):
    place.write("poll-interval = '1s'\n[local-queue]\nmax-bytes = 5")

    found = place.collected()

    assert found.value("poll_interval") == timedelta(seconds=1)
    assert found.value("local_queue.max_bytes") == 5


@pytest.mark.parametrize("words", [["-C", "a.toml", "config"], ["config", "-C", "a.toml"]])
def test_the_file_may_be_named_before_and_after_a_subcommand(place, words):
    place.write("concurrency = 7", "a.toml")

    done = CliRunner().invoke(command, [*words, "--json"])

    assert json.loads(done.stdout)["concurrency"]["value"] == 7


def test_without_a_file_the_parser_is_not_imported(place, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "tomllib", None)

    assert place.collected().values == {}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("concurrency = 1\nconcurrency =", "bad.toml is not TOML: Invalid value (at line 2"),
        ("a = '''\n\n", "bad.toml is not TOML: "),
        ("\udcff", "bad.toml is not UTF-8"),
    ],
)
def test_a_file_that_is_not_toml_is_refused_with_its_line(place, text, words):
    (place.folder / "bad.toml").write_bytes(text.encode(errors="surrogateescape"))

    refused = place.refused("-C", "bad.toml")

    assert refused.startswith(words)
    assert "UTF-8" in words or "at line " in refused


@pytest.mark.parametrize(
    ("path", "why"),
    [("nowhere.toml", "No such file or directory"), (".", "Is a directory")],
)
def test_a_file_that_was_named_must_be_there(place, path, why):
    assert place.refused("-C", path) == f"{path} cannot be read: {why}"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("concurrenc = 1", "there is no setting concurrenc: is it concurrency?"),
        ("jobs = 1", "there is no setting jobs: is it concurrency?"),
        ("pollInterval = 2000", "there is no setting pollInterval: is it poll_interval?"),
        (
            "[recovery]\nlease_durations = '1s'",
            "there is no setting recovery.lease_durations: is it recovery.lease_duration?",
        ),
        ("[recover]\nlease_duration = '1s'", "there is no setting recover: is it recovery?"),
        ("zzz = 1", "there is no setting zzz; `graphile-worker config` names all"),
        ("poll-interval = '1s'\npoll_interval = '2s'", "poll_interval is given twice"),
    ],
)
def test_an_unknown_key_is_refused_with_the_nearest_known_one(place, text, words):
    place.write(text)

    assert place.refused().startswith(f"graphile-worker.toml: {words}")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("concurrency = '4'", 'concurrency: expected a whole number, got "4"'),
        ("concurrency = true", "concurrency: expected a whole number, got true"),
        ("concurrency = 1.5", "concurrency: expected a whole number, got 1.5"),
        ("processes = 0", "processes: expected a whole number from 1, or off, got 0"),
        ("listen = 1", "listen: expected true or false, got 1"),
        ("listen = 'off'", 'listen: expected true or false, got "off"'),
        ("schema = 5", "schema: expected text, got 5"),
        ("tasks = ''", 'tasks: expected text, got ""'),
        ("log_format = 'xml'", 'log_format: expected text or json, got "xml"'),
        ("recovery = 5", "recovery: expected true or false, or a table, got 5"),
        ("[local_queue]\nsize = 'x'", "local_queue.size: expected a whole number, or off, got"),
        ("[concurrency]\na = 1", 'concurrency: expected a whole number, got {"a": 1}'),
        (
            "cancel_after = 'soon'",
            "cancel_after: expected a time such as 500ms, 2s, 1m30s, 1h or 1d",
        ),
        ("cancel_after = 2020-01-01", "cancel_after: expected a time such as"),
        ("cancel_after = true", "cancel_after: expected a time such as"),
    ],
)
def test_a_value_of_the_wrong_type_is_refused_with_what_is_expected(place, text, words):
    place.write(text)

    assert place.refused().startswith(f"graphile-worker.toml: {words}")


@pytest.mark.parametrize("value", ["2000", "2.5", "'2000'", "0"])
def test_a_number_without_a_unit_is_no_time_in_a_file(place, value):
    place.write(f"poll_interval = {value}")

    number = value.strip("'")
    assert place.refused().endswith(f'the reference counts milliseconds: write "{number}ms"')


@pytest.mark.parametrize("text", ["many", "1.5", "", " 4", "1_000", "٤"])
def test_a_variable_that_makes_no_sense_is_named(place, text):
    place.set("GRAPHILE_WORKER_CONCURRENCY", text)

    if not text:
        # It counts as not set.
        assert place.collected().values == {}
        return
    refused = place.refused()
    assert refused.startswith("GRAPHILE_WORKER_CONCURRENCY: expected a whole number, got ")


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
def test_a_time_is_said_with_units(text, seconds):
    span = parse_duration(text)

    assert span == timedelta(seconds=seconds)
    assert parse_duration(format_exact_duration(span)) == span


@pytest.mark.parametrize(
    "text",
    ["", " ", "s", "2", "2 s", "2S", "2sec", "1s1m", "1s1s", "-1s", "1.s", ".5s", "1e3s", "2s!",
     "1w", "٢s", "1,5s", "9" * 15 + "d", "9" * 400 + "s", "inf", "nans"],
)  # fmt: skip
def test_what_is_no_time_is_none(text):
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
def test_flags_and_variables_count_milliseconds_unless_there_is_a_unit(place, text, value):
    place.set("GRAPHILE_WORKER_SHUTDOWN_TIMEOUT", text)

    found = place.collected("--cancel-after", text)

    assert (found.value("cancel_after"), found.value("shutdown_timeout")) == (value, value)
    assert {"cancel_after", "shutdown_timeout"} <= found.values.keys()


@pytest.mark.parametrize("text", ["9" * 18, "-" + "9" * 18])
def test_a_time_without_end_is_refused(place, text):
    place.set("GRAPHILE_WORKER_SHUTDOWN_TIMEOUT", text)

    assert "expected a time" in place.refused()


@pytest.mark.parametrize("value", ["false", "'off'"])
def test_a_file_switches_off_what_may_be_off(place, value):
    place.write(f"cancel_after = {value}\nlocal_queue = {value}\nprocesses = {value}")

    found = place.collected()

    assert found.worker_options.cancel_after is None
    assert found.worker_options.local_queue is None
    assert found.command_options.processes is None


@pytest.mark.parametrize("value", ["false", "'off'"])
def test_what_cannot_be_off_is_not_switched_off(place, value):
    place.write(f"poll_interval = {value}")

    assert "poll_interval: expected a time such as" in place.refused()


@pytest.mark.parametrize(
    ("text", "value"),
    [("true", True), ("1", True), ("yes", True), ("On", True)]
    + [("false", False), ("0", False), ("NO", False), ("off", False)],
)
def test_a_variable_switches_with_any_of_these_words(place, text, value):
    place.set("GRAPHILE_WORKER_LISTEN", text)
    place.set("GRAPHILE_WORKER_RECOVERY", text)

    found = place.collected()

    assert (found.value("listen"), found.value("recovery")) == (value, value)


@pytest.mark.parametrize("setting", SETTINGS.values(), ids=SETTINGS)
def test_what_config_prints_can_be_written_into_a_file(place, setting):
    for sample in samples(setting):
        value = parse_toml(setting, sample, place.folder)
        plain = to_json_value(setting, value)

        if setting.name != "connection":
            assert parse_toml(setting, plain, place.folder) == value
            assert parse_text(setting, as_text(plain)) == value


# What is in force


def test_config_tells_each_setting_with_where_it_came_from(place):
    place.write("concurrency = 4\n[recovery]\nlease_duration = '1m'")
    place.set("GRAPHILE_WORKER_POLL_INTERVAL", "1500")

    done = place.config("--no-listen", "-m", "7")

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


def test_config_tells_what_the_app_says(place, monkeypatch):
    place.write("from graphile_worker import App\n\nq = App('shop', schema='jobs')", "confapp.py")
    monkeypatch.syspath_prepend(place.folder)

    found = place.in_force("--app", "confapp:q")

    assert found["schema"] == {"value": "jobs", "source": "app", "where": "app confapp:q"}
    assert found["connection"]["value"] == "dbname=shop"


def test_config_tells_the_folder_and_the_crontab_that_lie_here(place):
    place.write("", "tasks/one.py")
    place.write("", "crontab")

    found = place.in_force()

    assert found["tasks"] == {"value": "tasks", "source": "default", "where": None}
    assert found["crontab"]["value"] == "crontab"


def test_config_tells_the_database_of_libpqs_variable(place):
    place.set("PGDATABASE", "shop")

    assert place.in_force()["connection"] == {
        "value": "dbname=shop",
        "source": "environment",
        "where": "PGDATABASE",
    }


@pytest.mark.parametrize(
    "flags",
    [["-j", "0"], ["--max-memory", "5"], ["-c", "host=a dbname"], ["--lease-duration", "1"]],
)
def test_config_refuses_settings_that_make_no_sense(place, flags):
    done = place.config(*flags)

    assert isinstance(done.exception, ConfigurationError)
    assert done.stdout == ""


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
def test_a_password_is_never_shown(place, monkeypatch, connection, where):
    flags: list[str] = []
    if where == "flag":
        flags = ["-c", connection]
    elif where == "variable":
        place.set("DATABASE_URL", connection)
    elif where == "app":
        place.write(f"from graphile_worker import App\napp = App({connection!r})", "secretapp.py")
        monkeypatch.syspath_prepend(place.folder)
        monkeypatch.delitem(__import__("sys").modules, "secretapp", raising=False)
        flags = ["--app", "secretapp"]
    else:
        key = "connections" if where == "wrong key" else "connection"
        value = [connection] if where == "wrong type" else connection
        place.write(f"{key} = {json.dumps(value)}")

    for words in ([], ["--json"]):
        done = place.config(*words, *flags)

        assert CANARY not in done.output
        assert CANARY not in f"{done.exception}"
        if "wrong" in where:
            assert isinstance(done.exception, ConfigurationError)


def test_all_but_the_password_is_shown():
    shown = redact_secrets(f"postgres://me:{CANARY}@db.example:5433/shop?sslmode=require")

    assert sorted(shown.split()) == [
        *("dbname=shop", "host=db.example", "password=***", "port=5433"),
        *("sslmode=require", "user=me"),
    ]


def test_a_bare_name_is_shown_as_the_database_that_it_is():
    assert redact_secrets("shop") == "dbname=shop"
