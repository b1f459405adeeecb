"""Text of payloads, errors and child processes, in every line that a worker writes."""

import json

import pytest

from tests.support.hostile import TEXT, unsafe

APP = """
    import logging
    import sys

    from graphile_worker import App, JobContext
    from graphile_worker.events import JobStarted

    app = App()


    @app.task
    async def logs(ctx: JobContext, text: str) -> None:
        ctx.logger.info("an argument: %s", text)
        ctx.logger.warning(text)
        ctx.logger.info("a field", field=text)
        ctx.logger.scope(label=text).info("a label")
        logging.getLogger(text).error(text, stack_info=True)


    @app.task
    async def fails(text: str) -> None:
        try:
            raise KeyError(text)
        except KeyError as cause:
            error = ExceptionGroup(text, [ValueError(text)])
            error.add_note(text)
            raise error from cause


    @app.task(run_in="process")
    def child(text: str) -> None:
        print(text, flush=True)
        print(text, file=sys.stderr, flush=True)
        raise ValueError(text)


    @app.task(run_in="process")
    def dies(text: str) -> None:
        import os

        print(text, file=sys.stderr, flush=True)
        os._exit(3)


    @app.on(JobStarted)
    def listen(event: JobStarted) -> None:
        raise ValueError(event.job.payload["text"])
"""

PROGRAM = """\
    #!/bin/sh
    cat text
    cat text >&2
    exit 3
"""


@pytest.fixture
def run_jobs(programs, sql):
    """Run jobs whose payload is the hostile text, and return the log of the worker."""
    programs.write("hostile_app.py", APP)
    programs.write("tasks/program", PROGRAM).chmod(0o755)
    (programs.folder / "text").write_bytes(TEXT.encode())

    def run(tasks: list[str], *flags: str) -> str:
        for task in tasks:
            payload = json.dumps({"text": TEXT})
            sql.run("select from :schema.add_job($1, $2::json, max_attempts => 1)", task, payload)
        done = programs.run_to_end("--once", *flags)
        assert done.code == 0
        log: str = done.err
        return log

    return run


TASKS = ["logs", "fails", "child", "dies"]


@pytest.mark.every_version
def test_text_of_payloads_errors_and_children_cannot_forge_a_line_of_the_text_log(run_jobs):
    log = run_jobs(TASKS, "--app", "hostile_app:app") + run_jobs(["program"])

    lines = log.removesuffix("\n").split("\n")
    assert unsafe(log) == []
    assert [line for line in lines if not line.startswith(("[", "  | "))] == []
    # All parts of the text are in the log.
    assert log.count("forged end") > 10
    assert "  | Traceback (most recent call last):" in lines


def test_text_of_payloads_errors_and_children_cannot_forge_a_line_of_the_json_log(run_jobs):
    json_lines = ("--log-format", "json")
    log = run_jobs(TASKS, "--app", "hostile_app:app", *json_lines) + run_jobs(
        ["program"], *json_lines
    )

    records = [json.loads(line) for line in log.removesuffix("\n").split("\n")]
    assert unsafe(log) == []
    assert log.isascii()
    assert [each["field"] for each in records if "field" in each] == [TEXT]
