"""`graphile-worker types`: payloads for other languages, and changes that break them."""

import json

import pytest

APP = """
    from dataclasses import dataclass

    from graphile_worker import App

    app = App("postgres://nobody@127.0.0.1:1/nowhere")


    @dataclass
    class Line:
        product: str
        amount: int = 1


    @app.task
    def ship(lines: list[Line], note: str = "") -> None:
        \"\"\"Ship an order.\"\"\"


    @app.external_task("render_in_node")
    def render(page: int) -> None: ...
"""

TYPESCRIPT = """\
// Written by `graphile-worker types --typescript`. Change the Python tasks instead.

export type Line = {
  product: string;
  amount?: number;
};

declare global {
  namespace GraphileWorker {
    interface Tasks {
      /** Ship an order. */
      ship: {
        lines: Line[];
        note?: string;
      };
    }
  }
}

export {};
"""


@pytest.fixture
def shop(programs):
    """An app, and a function that changes it."""

    def change(*changes: tuple[str, str]) -> None:
        text = APP
        for old, new in changes:
            assert old in text
            text = text.replace(old, new)
        programs.write("shop.py", text)

    change()
    return change


def test_types_prints_the_payloads_of_an_app_without_its_database(programs, shop):
    schema = programs.run_to_end("types", "--json-schema", "--app", "shop")
    written = programs.run_to_end("types", "--typescript", GRAPHILE_WORKER_APP="shop")
    external = programs.run_to_end("types", "--typescript", "--external", "--app", "shop")

    assert list(json.loads(schema.out)["properties"]) == ["ship"]
    assert written.out == TYPESCRIPT
    assert "render_in_node: {" in external.out
    assert [each.code for each in (schema, written, external)] == [0, 0, 0]


def test_check_fails_for_breaking_changes_and_names_all(programs, shop):
    programs.write("tasks.json", programs.run_to_end("types", "--json-schema", "--app", "shop").out)

    def check(*arguments: str) -> tuple[int | None, str]:
        done = programs.run_to_end("types", "--check", "tasks.json", "--app", "shop", *arguments)
        assert done.err == ""
        return done.code, done.out

    assert check() == (0, "0 changes, 0 breaking\n")
    shop(('note: str = ""', 'note: str = "", gift: bool = False'))
    assert check("--json-schema") == (
        0,
        'compatible: ship, "gift": new optional key\n1 change, 0 breaking\n',
    )
    shop(("amount: int = 1", "amount: int"), ('note: str = ""', 'note: str | None = ""'))
    assert check() == (
        1,
        'breaking: ship, "lines[].amount": required now, so jobs without it fail\n'
        'compatible: ship, "note": null is accepted now\n'
        "2 changes, 1 breaking\n",
    )
    code, text = check("--json")
    assert (code, json.loads(text)[0]["path"]) == (1, "lines[].amount")
    shop(("def ship", "def send"))
    assert check() == (
        1,
        "breaking: ship: the task is removed, so its jobs fail\n"
        "compatible: send: new task\n"
        "2 changes, 1 breaking\n",
    )


def test_mistakes_are_reported_in_one_line(programs, shop):
    programs.write("other.json", "{}")
    for arguments, code, message in (
        ([], 2, "pass --json-schema, --typescript or --check FILE"),
        (["--typescript", "--check", "x"], 2, "pass --json-schema, --typescript or --check FILE"),
        (["--json-schema", "--json"], 2, "--json needs --check"),
        (["--check", "x", "--external"], 2, "Remove --external, and write x without it, too."),
        (["--check", "none.json"], 1, "cannot compare with none.json: [Errno 2]"),
        (["--check", "other.json"], 1, "was not written by graphile-worker types --json-schema"),
    ):
        done = programs.run_to_end("types", "--app", "shop", *arguments)
        assert (done.code, done.out) == (code, "")
        assert message in done.err
    alone = programs.run_to_end("types", "--json-schema")
    assert alone.err == "graphile-worker: no app. Pass one with --app package.module:app.\n"
