"""External tasks: enqueued by this app, run by another program."""

import builtins
import json
from dataclasses import dataclass
from datetime import date
from typing import Any

import pytest

from graphile_worker import (
    App,
    ConfigurationError,
    ExternalTask,
    JobContext,
    JobSpec,
    JobSpecError,
    TaskRouter,
)
from graphile_worker._contracts.document import build_document
from graphile_worker._discovery.discovery import build_tasks, load_tasks

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "order": {"type": "integer", "minimum": 1},
        "email": {"type": "string", "pattern": "@"},
        "lines": {"type": "array", "items": {"$ref": "#/$defs/line"}},
    },
    "required": ["order"],
    "additionalProperties": False,
    "$defs": {"line": {"type": "object", "required": ["amount"]}},
}


@dataclass
class Invoice:
    order: int
    due: date


def declare(app: TaskRouter[Any], **options: Any) -> ExternalTask[..., Any]:
    @app.external_task("send_invoice", **options)
    def send_invoice(order: int, email: str = "", **rest: Any) -> None:
        """Send an invoice."""

    return send_invoice


def test_a_job_of_an_external_task_has_its_payload_and_options():
    app = App()

    @app.external_task("billing/send", queue_name="mail", priority=3, max_attempts=5)
    def send(invoice: Invoice, /) -> None: ...

    spec = send.using(job_key="7").spec(Invoice(7, date(2030, 1, 31)))

    assert spec == JobSpec(
        "billing/send",
        {"order": 7, "due": "2030-01-31"},
        queue_name="mail",
        priority=3,
        max_attempts=5,
        job_key="7",
    )
    assert app.completed(JobSpec("billing/send", {"order": 7, "due": "2030-01-31"})).priority == 3


def test_the_payload_of_an_external_task_is_checked():
    app = App()
    task = declare(app)

    with pytest.raises(TypeError, match="send_invoice: missing a required argument: 'order'"):
        task.spec()
    with pytest.raises(JobSpecError, match='send_invoice: "order" must be int, got str'):
        task.spec("7")
    with pytest.raises(JobSpecError, match='send_invoice: "order" is missing'):
        app.completed(JobSpec("send_invoice", {}))


def test_no_worker_runs_an_external_task(tmp_path):
    app, router = App(), TaskRouter[Any](prefix="mail/")
    task = declare(router)
    app.include(router)

    assert app.tasks() == {}
    assert app.external_tasks() == {"send_invoice": task}
    assert app.find("send_invoice") is task
    message = "task 'send_invoice' is external, so another program runs it"
    with pytest.raises(ConfigurationError, match=f"{message}. Add a job with enqueue"):
        task(7)
    with pytest.raises(ConfigurationError, match=f"{message}. Remove it from the tasks of"):
        app.subset(["send_invoice"])
    with pytest.raises(ConfigurationError, match=f"{message}. Remove it from the tasks of"):
        build_tasks({"send_invoice": task})
    file = tmp_path / "both.py"
    file.write_text(
        "from graphile_worker import App\n"
        "app = App()\n"
        "@app.external_task('other')\n"
        "def other(): ...\n"
        "@app.task\n"
        "def own(): ...\n"
    )
    assert load_tasks(tmp_path)["both"].fn.__name__ == "own"


def test_an_external_task_cannot_have_the_name_of_another_task():
    app, router = App(), TaskRouter[Any]()
    declare(router)
    app.include(router)

    with pytest.raises(ConfigurationError, match="two tasks are named 'send_invoice'"):
        app.task(name="send_invoice")(lambda: None)
    with pytest.raises(ConfigurationError, match="two tasks are named 'send_invoice'"):
        declare(app)


def test_an_external_task_receives_no_context():
    with pytest.raises(ConfigurationError, match="remove the context"):

        @App().external_task("send")
        async def send(ctx: JobContext, order: int) -> None: ...


def test_a_cron_item_may_add_jobs_of_an_external_task():
    app = App()
    task = declare(app, queue_name="mail")
    app.cron("0 4 * * *", payload={"order": 1})(task)

    (item,) = app.cron_items()

    assert (item.task, item.spec.queue_name) == ("send_invoice", "mail")
    with pytest.raises(ConfigurationError, match='"order" must be int'):
        app.cron("0 4 * * *", id="b", payload={"order": "1"})(task)


def test_a_json_schema_checks_payloads_and_its_errors_quote_no_payload(tmp_path):
    path = tmp_path / "tasks.json"
    path.write_text(json.dumps({"properties": {"send_invoice": SCHEMA}, "$defs": SCHEMA["$defs"]}))
    for schema in (SCHEMA, f"{path}#/properties/send_invoice"):
        task = declare(App(), schema=schema)

        assert task.spec(7, "a@b.example", lines=[{"amount": 1}]).payload["order"] == 7
        for arguments, message in (
            ({"order": 0}, '"order": does not fit its schema: minimum 1'),
            ({"order": 1, "email": "s3cr3t"}, '"email": does not fit its schema: pattern "@"'),
            ({"order": 1, "s3cr3t": 1}, "the payload: its schema does not allow one of the keys"),
            ({"order": 1, "lines": [{}]}, '"lines[0].amount" is missing'),
        ):
            with pytest.raises(JobSpecError) as caught:
                task.spec(**arguments)
            assert str(caught.value) == f"send_invoice: {message}"


def test_errors_of_a_json_schema_quote_no_keys_of_the_payload():
    address, number = "ada@example.com", {"type": "integer"}
    by_address = {"additionalProperties": number}
    for schema, payload, message in (
        (by_address, {address: "x"}, 'payload[...]: does not fit its schema: type "integer"'),
        (
            {"properties": {"to": by_address}},
            {"to": {address: "x"}},
            '"to[...]": does not fit its schema: type "integer"',
        ),
        (
            {"properties": {"additionalProperties": {"patternProperties": {"@": by_address}}}},
            {"additionalProperties": {address: {"properties": "x"}}},
            '"additionalProperties[...][...]": does not fit its schema: type "integer"',
        ),
        (
            {"additionalProperties": {"items": {"required": ["amount"]}}},
            {address: [{}]},
            "payload[...][0].amount is missing",
        ),
        (
            {"patternProperties": {"@": {"$ref": "#/$defs/no"}}, "$defs": {"no": False}},
            {address: 1},
            "payload[...]: its schema does not allow any value",
        ),
        (
            {"unevaluatedProperties": number},
            {address: "x"},
            "the payload: its schema does not allow one of the keys",
        ),
        (
            {"dependentSchemas": {"to": {"properties": {"cc": number}}}},
            {"to": address, "cc": "x"},
            '"cc": does not fit its schema: type "integer"',
        ),
        (
            {"propertyNames": {"maxLength": 3}},
            {address: 1},
            "the payload: does not fit its schema: maxLength 3",
        ),
        (
            {
                "$schema": "http://json-schema.org/draft-03/schema#",
                "properties": {"to": {"required": True}},
            },
            {},
            '"to" is missing',
        ),
    ):
        app = App()

        @app.external_task("send", schema=schema)
        def send(payload: dict[str, Any], /) -> None: ...

        with pytest.raises(JobSpecError) as caught:
            send.spec(payload)
        assert str(caught.value) == f"send: {message}"
        assert address not in caught.value.argument


def test_a_wrong_json_schema_is_rejected_at_the_definition(tmp_path, monkeypatch):
    (tmp_path / "broken.json").write_text("{")
    (tmp_path / "tasks.json").write_text('{"type": "object"}')
    (tmp_path / "number.json").write_text("5")
    for schema, message in (
        ({"type": "text"}, "external task 'send_invoice': not a JSON Schema: 'text' is not valid"),
        (tmp_path / "none.json", "cannot read the schema .*none.json"),
        (tmp_path / "number.json", "a JSON Schema is an object or a boolean"),
        (str(tmp_path / "broken.json"), "cannot read the schema .*broken.json"),
        (f"{tmp_path}/tasks.json#/properties/lost", "the schema has no /properties/lost"),
        (7, "schema must be a JSON Schema as a dict, or the path of its file"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            declare(App(), schema=schema)

    def import_none(name: str, *arguments: Any) -> Any:
        if name == "jsonschema":
            raise ImportError
        return original(name, *arguments)

    original = builtins.__import__
    monkeypatch.setattr(builtins, "__import__", import_none)
    with pytest.raises(ConfigurationError, match=r"Install graphile-worker\[jsonschema\]"):
        declare(App(), schema=SCHEMA)


def test_a_reference_of_a_json_schema_is_never_downloaded():
    for reference in ("#/lost", "https://schemas.example/x.json"):
        task = declare(App(), schema={"$ref": reference})

        with pytest.raises(ConfigurationError, match=f"the schema has no .*{reference[1:]}"):
            task.spec(7)


def test_external_tasks_are_described_for_other_languages():
    app = App()
    declare(app)

    schema = build_document(app.external_tasks())["properties"]["send_invoice"]

    assert schema["description"] == "Send an invoice."
    assert schema["required"] == ["order"]
