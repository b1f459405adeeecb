"""`graphile-worker jobs` on a terminal: confirmation, progress and interruption."""

import re
import signal

import pytest

from tests.support.sql import Sql
from tests.support.terminal import Terminal

FILL = """
with task as (
  insert into :schema._private_tasks (identifier) values ('task') returning id
)
insert into :schema._private_jobs (task_id, attempts)
select id, 25 from task, generate_series(1, $1::int)
"""


def left(sql: Sql) -> int:
    count: int = sql.value("select count(*) from :schema._private_jobs where attempts = 25")
    return count


@pytest.mark.every_version
@pytest.mark.parametrize(("answer", "code", "still"), [("y\n", 0, 0), ("\n", 1, 3)])
def test_a_delete_asks_for_confirmation(programs, sql, answer, code, still):
    sql.run(FILL, 3)
    terminal = Terminal(programs, "jobs", "complete", "--all")

    terminal.wait_for_text("Delete 3 jobs? [y/N]: ")
    before = left(sql)
    terminal.type(answer)

    assert (before, terminal.end(), left(sql)) == (3, code, still)
    assert terminal.program.out == ("deleted 3 jobs\n" if code == 0 else "")


def test_a_progress_bar_leaves_standard_output_clean(programs, sql):
    sql.run(FILL, 2500)
    terminal = Terminal(programs, "jobs", "retry", "--all", "--throttle", "0")

    assert terminal.end() == 0

    positions = [int(found) for found in re.findall(r"(\d+)/2500", terminal.seen)]
    assert positions == sorted(positions)
    assert (positions[0], positions[-1]) == (0, 2500)
    assert len(set(positions)) > 2
    assert terminal.program.out == "retried 2,500 jobs\n"
    assert left(sql) == 0


def test_without_a_terminal_no_progress_bar_is_shown(programs, sql):
    sql.run(FILL, 1500)

    done = programs.without_fork.run_to_end("jobs", "retry", "--all", "--throttle", "0")

    assert (done.code, done.out, done.err) == (0, "retried 1,500 jobs\n", "")


def test_an_interrupted_change_prints_its_progress(programs, sql):
    sql.run(FILL, 3000)
    # The pause after the first batch is long.
    terminal = Terminal(programs, "jobs", "retry", "--all", "--throttle", "30")

    terminal.wait_for_text("1000/3000")
    terminal.program.signal(signal.SIGINT)

    assert terminal.end() == 130
    found = re.search(r"interrupted: retried ([\d,]+) jobs", terminal.seen)
    assert found is not None
    assert left(sql) == 3000 - int(found[1].replace(",", "")) > 0
