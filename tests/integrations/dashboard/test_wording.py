"""What the dashboard tells people: each sentence is written by the server, in one style."""

from datetime import timedelta
from typing import Any

from graphile_worker.contrib.dashboard._poller import Outage, Sample, SeriesPoint
from graphile_worker.contrib.dashboard._texts import (
    ACTION_TEXTS,
    KEY_MODE_TEXTS,
    PAUSE_TEXTS,
    RECOVERY_TEXTS,
    STATE_HELP,
    list_obstacles,
)
from graphile_worker.contrib.dashboard._users import Permission, Role, User
from graphile_worker.contrib.dashboard._wording import (
    capitalize,
    describe_drain,
    describe_no_jobs,
    describe_outage,
    describe_pause,
    describe_recovery,
    describe_run,
    describe_skipped,
    describe_trend,
    describe_verdict,
    describe_workers,
    format_age,
    format_rate,
    judge_lateness,
    link_jobs,
    link_page,
    list_stats,
    write_sentence,
)
from graphile_worker.jobs import JobKeyMode
from graphile_worker.ops.diagnostics.findings import Finding, FindingId, QueueHealth, Severity
from graphile_worker.ops.filters import parse_filter
from graphile_worker.ops.job_actions import JobAction
from graphile_worker.ops.pauses import PauseKind
from graphile_worker.ops.pools import PoolHealth, build_unknown_pool
from graphile_worker.ops.snapshot import Snapshot
from graphile_worker.ops.states import JobState
from tests.support.snapshots import NOON, make_history, make_pool, make_snapshot, make_task


def build_finding(severity: Severity) -> Finding:
    return Finding(id=FindingId.LATE, severity=severity, title="title", advice="advice")


def build_series(*counts: int) -> list[SeriesPoint]:
    return [
        SeriesPoint(NOON + timedelta(minutes=number), count, 0, 0, 0, None, None, None)
        for number, count in enumerate(counts)
    ]


def build_sample(*snapshots: Snapshot, **values: Any) -> Sample:
    history = make_history(*snapshots)
    last = snapshots[-1]
    return Sample(
        snapshot=last, taken_at=0.0, now=last.now, history=history, rates=history.rates, **values
    )


def test_texts_begin_with_a_capital_letter_and_names_keep_theirs():
    cases = {
        "if it is dead, wait": "If it is dead, wait",
        "paused by ada": "Paused by ada",
        "3 jobs are late": "3 jobs are late",
        "mail: 3, the oldest 2m ago": "mail: 3, the oldest 2m ago",
        "send_email is late": "send_email is late",
        "fsync is off": "fsync is off",
        "": "",
    }
    for text, shown in cases.items():
        assert capitalize(text) == shown
    assert capitalize("mail is late", name="mail") == "mail is late"


def test_a_clause_becomes_a_sentence():
    for text in ("read the errors of these jobs:", "Read the errors of these jobs."):
        assert write_sentence(text) == "Read the errors of these jobs."


def test_durations_have_at_most_two_units_and_a_space():
    cases = {0: "0s", 0.0004: "1ms", 0.25: "250ms", 1.5: "1.5s", 5: "5s", 372: "6m12s"}
    for seconds, shown in cases.items():
        assert format_age(seconds) == shown


def test_rates_are_per_second_minute_or_hour():
    cases = {0: "0/s", 0.5: "0.5/s", 1234: "1,234/s", 0.05: "3/min", 0.001: "3.6/h"}
    for rate, shown in cases.items():
        assert format_rate(rate) == shown


def test_the_verdict_summarizes_the_alerts_below_it():
    critical, warning, note = map(build_finding, Severity)
    cases = {
        "Work is flowing": (QueueHealth.HEALTHY, [note]),
        "Degraded: 2 warnings": (QueueHealth.DEGRADED, [warning, warning, note]),
        "Stalled: 1 critical, 1 warning": (QueueHealth.STALLED, [critical, warning]),
        "The queue could not be read yet": (QueueHealth.UNKNOWN, []),
    }
    for shown, (health, findings) in cases.items():
        assert describe_verdict(health, findings) == shown


def test_an_outage_states_what_is_wrong_since_when_and_what_follows():
    for code, start in {
        "timeout": "The database has been too slow",
        "?": "The database has",
    }.items():
        outage = Outage(since=0.0, code=code, message="connection refused")
        sentence = describe_outage(outage, 75.2)
        assert sentence.startswith(start)
        assert sentence.endswith(
            "for 1m15s, retrying. Actions are off until the database answers. Connection refused."
        )


def test_a_trend_compares_the_first_third_with_the_last():
    cases = {
        (1, 1, 5, 5, 9, 9): "rising over 5m",
        (9, 9, 5, 5, 1, 1): "falling over 5m",
        (9, 9, 5, 5, 9, 9): "steady over 5m",
        (1, 9): "",
    }
    for counts, shown in cases.items():
        assert describe_trend(build_series(*counts), "ready") == shown


def test_workers_are_counted_by_health():
    alive, dead = make_pool("a"), make_pool("b", health=PoolHealth.DEAD)
    cases = {
        "no worker is registered": [],
        "1 worker": [alive],
        "2 workers alive, 1 dead, 1 unregistered": [alive, alive, dead, build_unknown_pool("c")],
    }
    for shown, pools in cases.items():
        assert describe_workers(pools) == shown


def test_a_job_is_late_at_the_limits_of_the_diagnosis():
    for seconds, tone in ((None, ""), (60, ""), (61, "warn"), (301, "bad")):
        assert judge_lateness(seconds) == tone


def test_links_name_the_jobs_of_a_figure():
    assert link_jobs(JobState.READY) == "jobs?q=state%3Aready"
    assert link_page("queues", "a/b") == "queues/a%2Fb"
    assert link_jobs(JobState.READY, task="a b") == "jobs?q=task%3A%22a%20b%22%20state%3Aready"


def test_the_time_until_no_job_is_ready_is_an_estimate():
    first = make_snapshot(rows_added=0, rows_deleted=0)

    def describe(ready: int, added: int, deleted: int) -> str:
        last = make_snapshot(
            make_task(ready=ready), after=10, rows_added=added, rows_deleted=deleted
        )
        return describe_drain(build_sample(first, last))

    assert describe(0, 0, 0) == "nothing waits for a worker"
    assert describe(5, 0, 1000) == "drains in less than a second"
    assert describe(600, 0, 100) == "drains in ≈ 1m"
    assert describe(5, 100, 10) == "does not drain at this rate"
    assert describe(5, 100, 0) == "no job completed lately"
    assert describe_drain(build_sample(first)) == "measuring the rates"
    assert describe_drain(build_sample(first, is_partial=True)) == "being counted"


def test_figures_of_the_overview_have_a_value_a_note_and_a_link():
    task = make_task("mail", ready=1200, running=3, failed=2)
    pools = (make_pool(), make_pool("b"))
    sample = build_sample(
        make_snapshot(),
        make_snapshot(task, after=10, rows_added=50, rows_deleted=20, pools=pools),
        oldest_ready=75.0,
        oldest_ready_task="mail",
    )
    shown = {
        each["label"]: (each["value"], each["of"], each["note"], each["tone"], each["link"])
        for each in list_stats(sample)
    }
    assert shown == {
        "Oldest ready job": (
            "1m15s",
            None,
            "mail",
            "warn",
            "jobs?q=task%3Amail%20state%3Aready",
        ),
        "Ready": ("1,200", None, "does not drain at this rate", "", "jobs?q=state%3Aready"),
        "Running": ("3", "of 20 slots", "2 workers", "", "jobs?q=state%3Arunning"),
        "Throughput": ("2/s", None, "completed, 5/s added", "", "history"),
        "Retrying": ("0", None, "", "", "jobs?q=state%3Aretrying"),
        "Failed": ("2", None, "", "bad", "errors"),
    }


def test_figures_that_are_not_counted_yet_are_left_open():
    stats = list_stats(build_sample(make_snapshot(), is_partial=True))

    assert [each["value"] for each in stats] == ["none", "…", "…", "…", "…", "…"]


def test_a_search_without_jobs_offers_to_drop_each_part_of_the_filter():
    title, parts = describe_no_jobs(parse_filter("task:mail state:failed"), 200_000)

    assert title == "No failed jobs match"
    assert [each["button"] for each in parts if isinstance(each, dict)] == [
        ["Search all jobs", "jobs?q=task%3Amail%20state%3Afailed&newest=all"],
        ["Leave out task:mail", "jobs?q=state%3Afailed"],
        ["All states", "jobs?q=task%3Amail"],
    ]
    assert describe_no_jobs(parse_filter("task:mail"), None)[0] == "No jobs match"
    assert describe_no_jobs(parse_filter(""), None)[0] == "The queue is empty"


def test_each_state_action_pause_and_key_mode_has_a_text():
    cases = (
        (STATE_HELP, JobState),
        (ACTION_TEXTS, JobAction),
        (PAUSE_TEXTS, PauseKind),
        (RECOVERY_TEXTS, PoolHealth),
        (KEY_MODE_TEXTS, JobKeyMode),
    )
    for texts, kinds in cases:
        assert set(texts) == set(kinds)


def test_a_change_reports_what_it_did_and_what_it_left_out():
    warnings = ["no queue has this name"]
    assert describe_pause(PauseKind.QUEUE, "mail", "paused", warnings) == (
        "The queue “mail” is paused. No queue has this name."
    )
    assert describe_recovery(2, 1, {}) == "Released 2 jobs and 1 queue."
    assert describe_recovery(0, 0, {"a": "It is alive."}) == "a: It is alive."
    assert describe_skipped(1, 2, 3, "stale") == [
        "1 job skipped: a worker has locked it.",
        "2 jobs skipped: completed, removed or changed since the preview.",
        "3 jobs skipped: this action applies to jobs that are stale.",
    ]


def test_a_change_of_many_jobs_reports_its_progress_and_its_end():
    def describe(changed: int, rate: float | None = None, **more: bool) -> str:
        values = {"is_running": False, "is_canceled": False, **more}
        return describe_run(
            JobAction.DELETE, changed=changed, done=changed, total=3000, rate=rate, **values
        )

    assert describe(1000, is_running=True) == "Delete: 1,000 of 3,000"
    assert describe(1000, 500, is_running=True) == "Delete: 1,000 of 3,000, 500/s, about 4s left"
    assert describe(3000) == "3,000 jobs deleted."
    assert (
        describe(1, is_canceled=True) == "1 job deleted. Stopped before the end: 2,999 jobs left."
    )


def test_users_learn_why_they_cannot_do_something():
    viewer = list_obstacles(User("ada", Role.READ_ONLY), is_read_only=False)
    admin = list_obstacles(User("ada", Role.ADMIN), is_read_only=True)

    hidden = list_obstacles(User("ada", Role.ADMIN), is_read_only=False, hide_payloads=True)

    assert hidden[Permission.VIEW_PAYLOAD] == "This dashboard hides payloads."
    assert (viewer[Permission.VIEW], admin[Permission.VIEW_PAYLOAD]) == (None, None)
    assert viewer[Permission.RETRY] == "Your account does not have the permission “retry”."
    assert admin[Permission.RETRY] == "This dashboard is read-only."
