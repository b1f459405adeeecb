"""Groups of errors: what differs between two failures of one kind does not count."""

from random import Random

from graphile_worker.ops.error_groups import build_fingerprint, find_top_frame, normalize_error

PYTHON = """ValueError: no user 7

Traceback (most recent call last):
  File "/srv/venv/lib/worker.py", line 10, in run
    task()
  File "/srv/app/mail/send.py", line {line}, in send
    raise ValueError
ValueError: no user 7
"""
NODE = """Error: no user 7
    at send (/srv/app/mail/send.js:{line}:5)
    at process.processTicksAndRejections (node:internal/process/task_queues:95:5)
"""


def test_ids_numbers_quoted_values_and_addresses_are_replaced():
    for line, normalized in [
        ("KeyError: 'user_17'", "KeyError: <text>"),
        ("no user 17 after 1.5 s", "no user <n> after <n> s"),
        ("job_17 and v2", "job_<n> and v<n>"),
        ("mail to ada@example.com bounced", "mail to <email> bounced"),
        ("GET https://example.com/a?b=1 failed", "GET <url> failed"),
        ("id 6e1f6bf3-6d3c-5a0b-9a55-0f4a5d1c7a10", "id <uuid>"),
        ("at 2026-08-01T10:00:00.5Z: no", "at <time>: no"),
        ("<object at 0x7f2b34cdf230>", "<object at <hex>>"),
        ("commit deadbeef17 is bad", "commit <hex> is bad"),
        ("a decade of facades", "a decade of facades"),
        ("can't open the door, won't try", "can't open the door, won't try"),
        ('value "a \\"b\\" c" is wrong', "value <text> is wrong"),
        ("host 10.0.0.1:5432", "host <n>"),
        ("  a   b  ", "a b"),
    ]:
        assert normalize_error(line) == normalized, line


def test_the_top_frame_is_where_the_error_was_raised():
    assert find_top_frame(PYTHON.format(line=7)) == "send mail/send.py"
    assert find_top_frame(NODE.format(line=7)) == "send mail/send.js"
    assert find_top_frame("Error: x\n    at /srv/app/a.js:1:2") == "app/a.js"
    assert find_top_frame("Error: x") is None


def test_the_same_error_has_the_same_fingerprint():
    one = build_fingerprint("mail", PYTHON.format(line=7))

    assert one == build_fingerprint("mail", PYTHON.format(line=9).replace("user 7", "user 8"))
    assert one != build_fingerprint("other", PYTHON.format(line=7))
    assert one != build_fingerprint("mail", PYTHON.format(line=7).replace("in send", "in get"))
    assert one != build_fingerprint("mail", PYTHON.format(line=7).replace("no user", "no job"))


def test_any_error_has_a_fingerprint():
    random = Random(7)
    for _ in range(500):
        error = "".join(random.choices("\"'\\:/@ at(1aé\n\ud800", k=random.randrange(80)))
        assert len(build_fingerprint("task", error)) == 16


def test_long_errors_take_no_longer_than_others():
    for text in ("a." * 50_000, "(" * 100_000, "\n" * 100_000, " at x (" * 20_000, '"' * 99_999):
        build_fingerprint("task", text)
