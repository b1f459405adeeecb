"""`graphile-worker pause` and `resume`: what each prints, and what it changes."""

import json

PAUSED = "select locked_by from :schema._private_job_queues where queue_name = 'imports'"


def test_pause_queue_locks_the_queue_for_the_actor_and_resume_queue_unlocks_it(programs, sql):
    sql.run("select :schema.add_job('task', queue_name => 'imports')")

    paused = programs.run_to_end(
        *("pause", "queue", "imports", "--for", "10m", "--reason", "vendor is down"),
        *("--actor", "ada"),
    )

    assert paused.code == 0
    assert paused.err.startswith("no Python worker is alive to end the pause")
    assert paused.out.startswith("paused queue 'imports' until 2")
    assert sql.value(PAUSED) == "paused:ada"
    resumed = programs.run_to_end("resume", "queue", "imports")
    assert (resumed.code, resumed.out, resumed.err) == (0, "resumed queue 'imports'\n", "")
    assert sql.value(PAUSED) is None
    again = programs.run_to_end("resume", "queue", "imports")
    assert (again.code, again.out, again.err) == (0, "", "queue 'imports' is not paused\n")


def test_pause_queue_names_the_worker_that_has_locked_the_queue(programs, sql):
    sql.run(
        "insert into :schema._private_job_queues (queue_name, locked_at, locked_by)"
        " values ('imports', now(), 'pool-1')"
    )

    refused = programs.run_to_end("pause", "queue", "imports", "--wait", "100ms")

    assert (refused.code, refused.out) == (1, "")
    assert "queue 'imports' is busy: worker 'pool-1' is running a job of it" in refused.err
    assert sql.value(PAUSED) == "pool-1"


def test_pause_task_and_resume_task(programs, sql):
    sql.run("select :schema.add_job('send_email')")

    paused = programs.run_to_end("pause", "task", "send_email", "--json", "--actor", "ada")
    mistyped = programs.run_to_end("pause", "task", "send_mail")

    assert (paused.code, paused.err) == (0, "")
    pause = json.loads(paused.out)["pause"]
    assert (pause["kind"], pause["name"], pause["by"]) == ("task", "send_email", "ada")
    assert mistyped.err == "task 'send_mail' does not exist yet, did you mean 'send_email'?\n"
    names = "select name from :ext_schema.pauses order by 1"
    assert sql.run(names) == [("send_email",), ("send_mail",)]
    resumed = programs.run_to_end("resume", "task", "send_email", "--json")
    assert json.loads(resumed.out) == {"kind": "task", "name": "send_email", "was_paused": True}
    assert sql.run(names) == [("send_mail",)]


def test_pause_list_prints_who_paused_what_and_why(programs, sql):
    assert programs.run_to_end("pause", "list").err == "nothing is paused\n"
    programs.run_to_end("pause", "queue", "imports", "--reason", "vendor is down")
    programs.run_to_end("pause", "task", "send_email", "--for", "1h", "--actor", "ada")

    table = programs.run_to_end("pause", "list")
    listed = json.loads(programs.run_to_end("pause", "list", "--json").out)["pauses"]

    assert (table.code, table.err) == (0, "")
    header, queue, task = table.out.splitlines()
    assert header.split() == ["kind", "name", "by", "since", "until", "reason"]
    assert queue.startswith("queue  imports")
    assert queue.endswith("vendor is down")
    assert task.startswith("task   send_email  ada")
    assert [(each["kind"], each["until"] is None) for each in listed] == [
        ("queue", True),
        ("task", False),
    ]


def test_jobs_why_names_who_paused_the_task_of_a_job(programs, sql):
    job_id = str(sql.value("select (:schema.add_job('send_email')).id"))
    programs.run_to_end("pause", "task", "send_email", "--reason", "bounces", "--actor", "ada")

    why = programs.run_to_end("jobs", "why", job_id)

    assert "its task 'send_email' is paused by ada for" in why.out
    assert "; reason: bounces" in why.out
