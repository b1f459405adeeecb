"""`graphile-worker audit`: it lists who changed jobs with other commands."""

import json


def test_audit_lists_who_changed_a_job_by_actor_or_login_name(programs, sql):
    job_id = str(sql.value("select (:schema.add_job('task')).id"))

    failed = programs.run_to_end("jobs", "fail", job_id, "--actor", "ada", "--yes")
    retried = programs.run_to_end("jobs", "retry", job_id, LOGNAME="grace")
    listed = programs.run_to_end("audit", "--job", job_id, "--json")

    assert [(each.code, each.err) for each in (failed, retried, listed)] == [(0, "")] * 3
    entries = json.loads(listed.out)["entries"]
    assert [(each["actor"], each["action"], each["job_ids"]) for each in entries] == [
        ("grace", "jobs retry", [int(job_id)]),
        ("ada", "jobs fail", [int(job_id)]),
    ]
