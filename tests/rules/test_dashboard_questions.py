"""Each question of the dashboard's page has a picture, and a test that asks it in a browser."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "operations" / "dashboard.md"
TESTS = ROOT / "tests" / "integrations" / "dashboard"

# In the order of the page: the tests that do what an operator does.
QUESTIONS = {
    "Is work flowing": ["overview_shows_whether_work_flows_and_since_when_not"],
    "Why is this stuck": ["pages_say_why_a_queue_is_stuck"],
    "What is failing": ["errors_show_what_is_failing_and_act_on_one_group"],
    "How do I fix 10,000": ["bulk_retry_runs_ten_first_and_then_all_that_match"],
    "How do I stop": [
        "queues_pause_for_a_time_with_a_reason_and_resume",
        "tasks_pause_for_python_workers_only",
    ],
    "Does it load": ["pages_stay_usable_while_the_database_is_unreachable"],
    "What keeps me": [
        "delete_needs_a_confirmation_and_escape_cancels",
        "users_without_permissions_see_buttons_and_why_they_do_nothing",
        "pages_below_a_path_work_on_a_phone_and_name_their_environment",
    ],
    "Who is working": ["workers_show_who_works_and_recover_the_jobs_of_a_dead_one"],
    "Did my fix work": ["bulk_retry_runs_ten_first_and_then_all_that_match"],
    "Where is the job": ["filter_finds_the_job_of_one_customer"],
    "What happened": ["history_shows_what_happened_before"],
    "Which clock": ["times_follow_the_clock_of_the_database"],
    "Can I reach it": [
        "pages_below_a_path_work_on_a_phone_and_name_their_environment",
        "pages_fit_a_phone",
    ],
}


def read_rows() -> list[str]:
    """Return the rows of the table of questions."""
    section = PAGE.read_text().partition("## Questions it answers")[2].partition("\n## ")[0]
    return [line for line in section.splitlines() if line.startswith("| ")][1:]


def test_each_question_has_a_picture_and_a_test_in_a_browser() -> None:
    code = "\n".join(path.read_text() for path in TESTS.glob("test_*.py"))
    rows = read_rows()
    assert len(rows) == len(QUESTIONS) == 13
    for row, (question, tests) in zip(rows, QUESTIONS.items(), strict=True):
        assert row.startswith(f"| {question}"), row
        [picture] = re.findall(r"\((\S+\.png)\)", row)
        assert (PAGE.parent / picture).exists(), picture
        for name in tests:
            assert f"def test_{name}(" in code, name
