"""The crontab as the reference reads it: its real parser and its real matcher, run by Node."""

import json
import re
import subprocess
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import Any, Literal
from urllib.parse import unquote

import pytest

from graphile_worker._payloads import encode
from graphile_worker.crontab import ParsedCronItem, TimestampDigest, parse_crontab
from graphile_worker.crontab.items import parse_pattern
from graphile_worker.crontab.lines import WHITESPACE
from graphile_worker.crontab.patterns import CronPattern
from graphile_worker.errors import CrontabError
from tests.support.crontabs import Crontabs
from tests.support.tiers import size
from tests.support.tools import MODULES, NODE

PROGRAM = Path(__file__).parent / "programs" / "crontab.js"
SEED = 6
MILLISECOND = timedelta(milliseconds=1)
# Above this not every whole number is a number of JavaScript.
EXACT = 2**53

Answer = dict[str, Any]
Item = dict[str, Any]
Figure = Callable[[str], None]


def reference(mode: str, text: str) -> list[str]:
    """The lines that the reference answers with."""
    command = [str(NODE), str(PROGRAM), str(MODULES / "gw018"), mode]
    done = subprocess.run(
        command, input=text, capture_output=True, encoding="utf-8", timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    # Not splitlines: what ends a line there may stand in a text of JSON.
    return done.stdout.rstrip("\n").split("\n")


def answers_to(crontabs: Sequence[str]) -> list[Answer]:
    """What the reference makes of each crontab."""
    lines = reference("parse", "\n".join(json.dumps(each) for each in crontabs))
    return [json.loads(line) for line in lines]


# Both results in the same words.


def our_item(item: ParsedCronItem) -> Item:
    assert isinstance(item.match, CronPattern)
    spec, pattern = item.spec, item.match
    payload = encode(spec.payload)
    return {
        "task": item.task,
        "identifier": item.identifier,
        "backfill": item.backfill // MILLISECOND,
        "max": spec.max_attempts,
        "queue": spec.queue_name,
        "priority": spec.priority,
        "key": spec.job_key,
        "mode": spec.job_key_mode,
        "payload": None if payload is None else json.loads(payload),
        "minutes": sorted(pattern.minutes),
        "hours": sorted(pattern.hours),
        "dates": sorted(pattern.dates),
        "months": sorted(pattern.months),
        "dows": sorted(pattern.dows),
    }


def their_item(item: Item) -> Item:
    options = item["options"]
    return {
        **item,
        "backfill": options["backfillPeriod"],
        "max": options.get("maxAttempts"),
        "queue": options.get("queueName"),
        "priority": options.get("priority"),
        "key": options.get("jobKey"),
        "mode": options.get("jobKeyMode"),
    }


def same_json(ours: Any, theirs: Any) -> bool:
    """As ==, but true is not 1."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        if ours.keys() != theirs.keys():
            return False
        return all(same_json(value, theirs[key]) for key, value in ours.items())
    if isinstance(ours, list) and isinstance(theirs, list):
        return len(ours) == len(theirs) and all(map(same_json, ours, theirs))
    if isinstance(ours, bool) or isinstance(theirs, bool):
        return ours is theirs
    return bool(ours == theirs)


# Where we differ from the reference on purpose.


Kind = Literal["only theirs", "only ours", "both"]


@dataclass(frozen=True, kw_only=True)
class Case:
    """A line that both parse differently, with each result; None where it is rejected."""

    crontab: str
    line: str
    ours: Item = field(default_factory=dict)
    theirs: Item = field(default_factory=dict)
    error: str = ""
    problems: int = 1

    @property
    def taken_by(self) -> Kind:
        if not self.ours:
            return "only theirs"
        return "both" if self.theirs else "only ours"

    def __str__(self) -> str:
        differing = {key: (self.ours[key], self.theirs[key]) for key in self.differing}
        return f"taken by {self.taken_by}: {self.line!r} {differing or self.error}"

    @property
    def differing(self) -> set[str]:
        if self.taken_by != "both":
            return set()
        return {key for key in self.ours if not same_json(self.ours[key], self.theirs[key])}


def strings_in(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from (text for pair in value.items() for each in pair for text in strings_in(each))
    elif isinstance(value, list):
        yield from (text for each in value for text in strings_in(each))


def depth_of(value: Any) -> int:
    if not isinstance(value, dict | list):
        return 0
    inside = value.values() if isinstance(value, dict) else value
    return 1 + max(map(depth_of, inside), default=0)


def rounded(value: Any) -> Any:
    """As JavaScript would have it: numbers are floats, and what is too large for one is null."""
    if isinstance(value, dict):
        return {key: rounded(each) for key, each in value.items()}
    if isinstance(value, list):
        return [rounded(each) for each in value]
    if not isinstance(value, int) or isinstance(value, bool):
        return value
    try:
        return float(value)
    except OverflowError:
        return None


def has_other_than(case: Case, option: str, good: range) -> bool:
    """Is this option given, and not one of the good numbers? Infinity is null in JSON."""
    options = case.theirs["options"]
    return option in options and options[option] not in good


def is_longer(case: Case, name: str, most: int) -> bool:
    return len(case.theirs[name] or "") > most


def holds_letter(case: Case, letters: str) -> bool:
    texts = strings_in([case.theirs["payload"], case.theirs["key"]])
    return any(re.search(letters, text) for text in texts)


def is_mangled(case: Case) -> bool:
    """Has the key a letter beyond ASCII, and escapes that are not all letters in UTF-8?"""
    match = re.search(r"[?&]jobKey=([^&\s]*)", case.line)
    text = match[1] if match else ""
    if text.isascii() or not re.search("%[0-9a-fA-F]{2}", text):
        return False
    try:
        unquote(text, errors="strict")
    except UnicodeDecodeError:
        return True
    return re.search("%(?![0-9a-fA-F]{2})", text) is not None


def is_rounded(case: Case) -> bool:
    """Are the payloads the same but for whole numbers that JavaScript does not have?"""
    numbers = re.findall("0[xX][0-9a-fA-F]+|[1-9][0-9]{15,}", case.line)
    alike = same_json(rounded(case.ours["payload"]), rounded(case.theirs["payload"]))
    return case.differing == {"payload"} and alike and any(int(each, 0) > EXACT for each in numbers)


def is_beyond_time(case: Case) -> bool:
    period = case.theirs["backfill"]
    return period is None or period >= timedelta.max // MILLISECOND


def is_escape_in_a_name(case: Case) -> bool:
    escape = re.search(r"[{,]\s*[\w$\\]*\\u[0-9a-fA-F]{4}", case.line)
    return escape is not None and "JSON5: invalid identifier" in case.error


def is_new_letter(case: Case) -> bool:
    named = re.search(r"JSON5: invalid character '(.)'", case.error)
    if named is None or named[1].isascii():
        return False
    return unicodedata.category(named[1]) in ("Lu", "Ll", "Lt", "Lm", "Lo", "Nl", "Mn", "Mc", "Nd")


@dataclass(frozen=True)
class Decision:
    """Who takes the line, how it is known, why it is so, and a crontab of nothing else."""

    taken_by: Kind
    applies: Callable[[Case], bool]
    reason: str
    example: str


EVERY = "* * * * *"
SOONER = "the database would reject each job at its minute: better to report it at the start"

DECIDED = {
    "max that no job can have": Decision(
        "only theirs",
        lambda case: has_other_than(case, "maxAttempts", range(1, 32768)),
        SOONER,
        f"{EVERY} a ?max=0\n{EVERY} b ?max=32768\n{EVERY} c ?max={'9' * 400}",
    ),
    "priority beyond smallint": Decision(
        "only theirs",
        lambda case: has_other_than(case, "priority", range(-32768, 32768)),
        SOONER,
        f"{EVERY} a ?priority=32768\n{EVERY} b ?priority=-32769",
    ),
    "task over 128 letters": Decision(
        "only theirs", lambda case: is_longer(case, "task", 128), SOONER, f"{EVERY} {'t' * 129}"
    ),
    "queue over 128 letters": Decision(
        "only theirs",
        lambda case: is_longer(case, "queue", 128),
        SOONER,
        f"{EVERY} a ?queue={'q' * 129}",
    ),
    "id that no index holds": Decision(
        "only theirs",
        lambda case: is_longer(case, "identifier", 2000),
        SOONER,
        f"{EVERY} a ?id={'i' * 2001}",
    ),
    "jobKey over 512 letters": Decision(
        "only theirs",
        lambda case: is_longer(case, "key", 512),
        SOONER,
        f"{EVERY} a ?jobKey={'k' * 513}",
    ),
    "empty jobKey": Decision(
        "only theirs",
        lambda case: case.theirs["key"] == "",
        SOONER,
        f"{EVERY} a ?jobKey=\n{EVERY} b ?jobKey",
    ),
    "NUL": Decision(
        "only theirs",
        lambda case: holds_letter(case, "\x00"),
        "neither text nor json of PostgreSQL can hold it",
        f"{EVERY} a {{a: '\\0'}}\n{EVERY} b ?jobKey=%00\n{EVERY} c {{'\\u0000': 1}}",
    ),
    "lone surrogate": Decision(
        "only theirs",
        lambda case: holds_letter(case, "[\ud800-\udfff]"),
        "neither PostgreSQL nor UTF-8 can hold it",
        f"{EVERY} a {{a: '\\ud800'}}\n{EVERY} b ?jobKey=\ud800",
    ),
    "NaN and Infinity": Decision(
        "only theirs",
        lambda case: bool(case.theirs["unfinite"]),
        "JSON has no such number: Node writes null, which is not what the line means",
        f"{EVERY} a {{a: NaN}}\n{EVERY} b {{a: [-Infinity]}}\n{EVERY} c {{a: {{b: 1e999}}}}",
    ),
    "integer of thousands of digits": Decision(
        "only theirs",
        lambda case: re.search("[0-9a-fA-F]{3500}", case.line) is not None,
        "Python reads and writes no more than 4,300, as more would take long",
        f"{EVERY} a {{a: 0x{'f' * 4000}}}\n{EVERY} b {{a: {'9' * 5000}}}",
    ),
    "integer beyond 2^53": Decision(
        "both",
        is_rounded,
        "all of its digits are kept, as the database does, where JavaScript rounds",
        f"{EVERY} a {{a: 12345678901234567890}}\n{EVERY} b {{a: -0xFFFFFFFFFFFFFFFFF}}\n"
        f"{EVERY} c {{a: [1, {'9' * 320}]}}",
    ),
    "deep nesting": Decision(
        "only theirs",
        lambda case: depth_of(case.theirs["payload"]) > 30,
        "the reader of JSON5 goes only so deep",
        f"{EVERY} a {{a: {'[' * 200}{']' * 200}}}",
    ),
    "letters beside broken percents": Decision(
        "both",
        lambda case: is_mangled(case) and case.differing == {"key"},
        "the reference cuts each letter of such a text down to a byte; here it stays",
        f"{EVERY} a ?jobKey=ä%ff\n{EVERY} b ?jobKey=ö%zz%41",
    ),
    "line break beside broken percents": Decision(
        "only ours",
        lambda case: is_mangled(case) and "invalid value for 'jobKey'" in case.error,
        "the same, where that byte is a line break, and so rejected",
        f"{EVERY} a ?jobKey=Ċ%ff",
    ),
    "period beyond the calendar": Decision(
        "only theirs",
        is_beyond_time,
        "this time does not exist",
        f"{EVERY} a ?fill=1000000000d\n{EVERY} b ?fill={'9' * 400}s",
    ),
    "more than 1,000 options": Decision(
        "only theirs",
        lambda case: case.line.count("&") >= 1000,
        "the reference leaves those after the first thousand unread, wrong or not",
        f"{EVERY} a ?{'&' * 1000}never=1",
    ),
    "any letter by an escape in a bare name": Decision(
        "only ours",
        is_escape_in_a_name,
        "the reader of JSON5 asks less of a letter that is written as an escape",
        f"{EVERY} a {{\\u0020a: 1}}",
    ),
    "letter of a later Unicode in a bare name": Decision(
        "only ours",
        is_new_letter,
        "Node knows the letters of Unicode 10, Python those of its Unicode version",
        f"{EVERY} a {{\u1c90: 1}}",
    ),
    "over 64 kB": Decision(
        "only theirs",
        lambda case: len(case.crontab.encode(errors="replace")) > 64 * 1024,
        "that is not a crontab, and would take long to read",
        f"{EVERY} a {{}}\n# {'x' * 64 * 1024}",
    ),
}


def items_of(crontab: str) -> list[ParsedCronItem] | CrontabError:
    try:
        return parse_crontab(crontab)
    except CrontabError as error:
        return error


def numbered_lines(crontab: str) -> dict[int, str]:
    """The lines that are items, by their numbers."""
    lines = enumerate((line.strip(WHITESPACE) for line in re.split(r"\r?\n", crontab)), start=1)
    return {number: line for number, line in lines if line and not line.startswith("#")}


def cases_of(crontab: str, answer: Answer) -> list[Case]:
    """All lines that are read differently."""
    ours = items_of(crontab)
    if isinstance(ours, CrontabError):
        return refused_by_us(crontab, ours, answer)
    lines = numbered_lines(crontab)
    found = dict(zip(lines, map(our_item, ours), strict=True))
    if not answer["ok"]:
        number = line_of(answer)
        assert number is not None, f"only Node rejects {crontab!r}: {answer['error']}"
        return [
            Case(crontab=crontab, line=lines[number], ours=found[number], error=answer["error"])
        ]
    pairs = zip(lines.values(), found.values(), answer["items"], strict=True)
    cases = [
        Case(crontab=crontab, line=line, ours=mine, theirs=their_item(raw))
        for line, mine, raw in pairs
    ]
    return [case for case in cases if case.differing]


def refused_by_us(crontab: str, error: CrontabError, answer: Answer) -> list[Case]:
    numbers = Counter(problem.line for problem in error.problems)
    if not answer["ok"]:
        return [] if line_of(answer) in {*numbers, None} else refused_elsewhere(crontab, answer)
    raws = dict(zip(numbered_lines(crontab), answer["items"], strict=True))
    return [
        Case(
            crontab=crontab,
            line=numbered_lines(crontab)[number],
            theirs=their_item(raws[number]),
            error=str(error),
            problems=count,
        )
        for number, count in numbers.items()
    ]


def refused_elsewhere(crontab: str, answer: Answer) -> list[Case]:
    """Node stops at the first line that it rejects; this line is valid in Python alone."""
    line = numbered_lines(crontab)[line_of(answer) or 0]
    error = re.sub(r"\b(line '?)[0-9]+", r"\g<1>1", answer["error"], count=1)
    return cases_of(line, {"ok": False, "error": error})


def line_of(answer: Answer) -> int | None:
    """The line that the reference complains about; none if it is about the whole."""
    match = re.search(r"\bline '?([0-9]+)", answer["error"])
    return int(match[1]) if match else None


def names_of(case: Case) -> set[str]:
    """The decisions that a difference belongs to; none if there is something else to it."""
    names = {
        name
        for name, decision in DECIDED.items()
        if decision.taken_by == case.taken_by and decision.applies(case)
    }
    return names if len(names) >= case.problems else set()


# Generated crontabs


@pytest.mark.feature("F255", "F257", "F268")
@pytest.mark.single_version
@pytest.mark.timeout(180)
def test_generated_crontabs_are_parsed_as_node_parses_them(figure: Figure) -> None:
    generator = Crontabs(SEED)
    crontabs = [generator.crontab() for _ in range(2000)]

    answers = answers_to(crontabs)

    accepted = sum(answer["ok"] for answer in answers)
    found = [cases_of(*both) for both in zip(crontabs, answers, strict=True)]
    undecided = [str(case) for cases in found for case in cases if not names_of(case)]
    classes = Counter(
        name for cases in found for name in set().union(*(names_of(case) for case in cases))
    )
    listed = ", ".join(f"{count} × {name}" for name, count in sorted(classes.items()))
    figure(
        f"2,000 crontabs: Node accepts {accepted} and rejects {2000 - accepted}; "
        f"{len(undecided)} undecided differences; decided: {listed}"
    )
    assert undecided == []
    assert 800 < accepted < 1200


@pytest.fixture(scope="module")
def decided_answers() -> dict[str, Answer]:
    examples = [decision.example for decision in DECIDED.values()]
    return dict(zip(DECIDED, answers_to(examples), strict=True))


@pytest.mark.feature("F255", "F257", "F268")
@pytest.mark.parametrize("name", DECIDED)
def test_each_documented_difference_to_node_exists(
    name: str, decided_answers: dict[str, Answer]
) -> None:
    crontab = DECIDED[name].example

    cases = cases_of(crontab, decided_answers[name])

    assert len(cases) == len(numbered_lines(crontab))
    assert all(name in names_of(case) for case in cases)


# The edges of each rule, by hand


@dataclass(frozen=True)
class Edges:
    taken: Sequence[str]
    refused: Sequence[str]


def fields(*texts: str) -> list[str]:
    """Each text as the third field and as the last."""
    return [line for each in texts for line in (f"* * {each} * * t", f"* * * * {each} t")]


def commands(*texts: str) -> list[str]:
    return [f"{EVERY} {text}" for text in texts]


def keys(*texts: str) -> list[str]:
    return commands(*(f"t ?jobKey={text}" for text in texts))


def payloads(*texts: str) -> list[str]:
    return [f"{EVERY} task {text}" for text in texts]


EDGES = {
    "lines": Edges(
        taken=[
            "", "\n\n", "#", f" \t# {EVERY}", f"\ufeff{EVERY} a\r\n{EVERY} b\r\n", f"{EVERY} a\r",
            f"\u2028{EVERY} a\u2029\n", "*\xa0*\t*\u3000*\u2028*\r a", f"{EVERY} a\n# é \ud800",
        ],
        refused=[
            f"{EVERY} a\r{EVERY} b", f"{EVERY} a # b", "a", EVERY, f"\u200b{EVERY} a",
            f"\x85{EVERY} a", f"{EVERY}\x1ca", f"{EVERY} a\x00", f"{EVERY} a\u2028{{}}",
        ],
    ),
    "numbers": Edges(
        taken=[
            "0 0 1 1 0 t", "59 23 31 12 6 t", "0 0 1 1 7 t", "00 000 01 012 07 t",
            "0,59 0,23 1,31 1,12 0,7 t", "1,1,1 * * * * t",
        ],
        refused=[
            "60 0 1 1 0 t", "0 24 1 1 0 t", "0 0 0 1 0 t", "0 0 32 1 0 t", "0 0 1 0 0 t",
            "0 0 1 13 0 t", "0 0 1 1 8 t", f"{'9' * 400} * * * * t", *fields("-1", "+1", "1.0"),
        ],
    ),
    "ranges": Edges(
        taken=["0-59 0-23 1-31 1-12 0-7 t", *fields("1-2", "01-002", "6-7", "1-3,2-5")],
        refused=[
            "0-60 * * * * t", "* 0-24 * * * t", "* * 0-31 * * t", "* * * 1-13 * t", "* * * * 0-8 t",
            *fields("5-5", "5-4", "-5", "5-", "1-2-3", "1--2", "7-8,x"),
        ],
    ),
    "steps": Edges(
        taken=fields("*/1", "*/2", "*/007", "*/31", "*/1000", f"*/{'9' * 400}", "*/2,*/3", "*,1"),
        refused=fields("*/0", "*/000", "*/", "*/-1", "*/*", "*/2-3", "1/2", "1-5/2", "**", "*1"),
    ),
    "lists": Edges(
        taken=fields("1,2", "1,1-3,*/5,*"), refused=fields(",", "1,", ",1", "1,,2", "1;2", "1.2")
    ),
    "cron's other words": Edges(
        taken=[],
        refused=[
            "@daily t", "@reboot t", *fields("MON", "jan", "L", "W", "5#1", "?", "H", "~", "٣"),
        ],
    ),
    "tasks": Edges(
        taken=commands("t", "_", "a/b", "a:b", "a-b", "T9_", "a//b::--", "t" * 128),
        refused=commands("9t", "/t", ":t", "-t", "é", "a.b", "a\\b", "a,b", "a?id=b", "a{}", "a b"),
    ),
    "identifiers": Edges(
        taken=[
            f"{EVERY} t\n{EVERY} t ?id=u", f"{EVERY} t\n{EVERY} T",
            f"{EVERY} u ?id=t\n{EVERY} u", f"{EVERY} t ?id={'x' * 300}",
        ],
        refused=[
            f"{EVERY} t\n{EVERY} t", f"{EVERY} t\n{EVERY} u ?id=t", f"{EVERY} t ?id=a/b",
            f"{EVERY} t ?id=u\n{EVERY} t ?id=u",
        ],
    ),
    "options": Edges(
        taken=commands(
            "t ?id=a", "t ?id=a&max=1", "t ?&&id=a&", "t ?&", "t ?%69d=%61", "t ?max=007",
            "t ?priority=-0", "t ?priority=-32768", "t ?max=32767", "t ?queue=:-_",
            "t ?jobKeyMode=replace", "t ?jobKey=a", "t ?jobKey=a&jobKeyMode=preserve_run_at",
            "t ?id=a {}", f"t ?queue={'q' * 128}", f"t ?jobKey={'k' * 512}",
        ),
        refused=commands(
            "t ?", "t ? {}", "t ? id=a", "t ?=", "t ?=a", "t ?id", "t ?id=", "t ?ID=a", "t id=a",
            "t ?id=a&id=b", "t ?id=a&%69d=a", "t ?id=a&id=a", "t ?max=-1", "t ?max=1.0", "t ?max=",
            "t ?max=%201", "t ?queue=", "t ?queue=a+b", "t ?queue=a%0A", "t ?jobKeyMode=",
            "t ?jobKeyMode=unsafe_dedupe", "t ?priority=+1", "t ?x=1", "t ?jobKey=a%0Ab",
            "t ?jobKey=%E2%80%A8", "t ?__proto__=1", "t ?id=a ?max=1", "t {} ?id=a",
            "t ?jobKey=a&jobKey",
        ),
    ),
    "percents": Edges(
        taken=keys(
            "a%20b", "a+b", "%2B", "%C3%A4", "ä", "%25", "%", "%%", "%zz", "%4", "a%zz%41", "%ff",
            "%C3x", "%ED%A0%80", "%F0%9F%98%80", "%C0%80", "a=b=c", "=", "%3D", "%26", "a?b", "{}",
            "%E2%82", "%E2%82x", "%F4%90%80%80", "%80%80", "ä%zz", "%2541", "%C2%85",
        ),
        refused=[*keys("%0a", "%0D", "%E2%80%A9"), *commands("t ?id=%", "t ?id=%zz", "t ?i%=a")],
    ),
    "periods": Edges(
        taken=commands(
            "t ?fill=0s", "t ?fill=4w3d2h1m", "t ?fill=1s1s", "t ?fill=007d", "t ?fill=1s2w",
            "t ?fill=999999998d", "t ?fill=%31d",
        ),
        refused=commands(
            "t ?fill=", "t ?fill=1", "t ?fill=s", "t ?fill=1y", "t ?fill=1d+1h", "t ?fill=1d,1h",
            "t ?fill=-1d", "t ?fill=1.5h", "t ?fill=1D", "t ?fill=1d1", "t ?fill=1d%0A",
        ),
    ),
    "payloads": Edges(
        taken=payloads(
            "{}", "{ }", "{a:1}", "{a:1,}", "{'a':1}", '{"a":1}', "{a:'it\\'s'}", "{$_:1}",
            "{a:[1,2,],}", "{a:.5,b:5.,c:+1,d:-0x1F,e:1e3}", "{/* } */}", "{a:1}//}", "{a:1,a:2}",
            "{a:'\\x41\\u0041\\q'}", "{\\u0061:1}", "{ü:'名'}", "{null:null,true:true}",
            "{__proto__:{a:1}}", "{a:'?'}", "{a:'#'}", "{a:9007199254740991}", "{a:'\\\\u0000'}",
            "{a:1.0,b:true,c:1}", "{a:-0}", "{a:1e-400}", "{}  \t", "{_cron:1}", "{constructor:1}",
            f"{{a:{'[' * 25}{']' * 25}}}", "{'2':1,'1':2}", "{a:'\\ud83d\\ude00'}",
        ),
        refused=payloads(
            "{", "}", "{}}", "{a}", "{a:}", "{a:1 b:2}", "{,}", "{a:1,,}", "{a:[,]}", "{a:01}",
            "{a:0x}", "{a:1e}", "{a:.}", "{a:undefined}", "{a:'}", "{a:'\\1'}", "{a:'\\01'}",
            "{a:`b`}", "{a-b:1}", "{1:1}", "{a:1};", "{} x", "{/*}", "{//}", "[]", "null", "1",
            "'a'", "{a:nan}", "{a:- 1}", "{a:'b' 'c'}", "{a:'\u2028'}",
        ),
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def edge_answers() -> dict[str, Answer]:
    texts = [text for edges in EDGES.values() for text in (*edges.taken, *edges.refused)]
    return dict(zip(texts, answers_to(texts), strict=True))


@pytest.mark.feature("F255", "F257", "F268")
@pytest.mark.parametrize("rule", EDGES)
def test_edge_cases_of_each_crontab_rule_match_node(
    rule: str, edge_answers: dict[str, Answer]
) -> None:
    edges = EDGES[rule]

    texts = (*edges.taken, *edges.refused)
    assert [str(case) for text in texts for case in cases_of(text, edge_answers[text])] == []
    assert [text for text in edges.taken if not edge_answers[text]["ok"]] == []
    assert [text for text in edges.refused if edge_answers[text]["ok"]] == []


# Minutes

FIRST, LAST = date(2023, 1, 1), date(2025, 12, 31)
SPECIAL_DAYS = [
    *(date(2024, 2, 28) + timedelta(days=n) for n in range(3)),
    *(date(year, 12, 30) + timedelta(days=n) for year in (2023, 2024) for n in range(4)),
    *(FIRST, LAST, date(2023, 2, 28), date(2023, 3, 1)),
]


DAYS = size(gate=40, nightly=400)


def days_to_compare() -> list[date]:
    """Days of three years: those where calendars go wrong, and others."""
    every = [FIRST + timedelta(days=n) for n in range((LAST - FIRST).days + 1)]
    others = sorted(set(every) - set(SPECIAL_DAYS))
    return sorted([*SPECIAL_DAYS, *Random(SEED).sample(others, DAYS - len(SPECIAL_DAYS))])


def minutes_of(day: date) -> Iterator[TimestampDigest]:
    start = datetime(day.year, day.month, day.day, tzinfo=UTC)
    return (TimestampDigest.from_datetime(start + timedelta(minutes=n)) for n in range(24 * 60))


@pytest.mark.single_version
@pytest.mark.timeout(400)
def test_each_minute_of_many_days_matches_as_in_node(figure: Figure) -> None:
    days = days_to_compare()
    generator = Crontabs(SEED)
    patterns = [*dict.fromkeys(generator.pattern() for _ in range(220))][:200]

    theirs = reference("match", json.dumps({"patterns": patterns, "days": [*map(str, days)]}))

    digests = [digest for day in days for digest in minutes_of(day)]
    # As methods: calling the patterns themselves takes twice as long.
    matches = [parse_pattern(pattern).__call__ for pattern in patterns]
    ours = [sha256(bytes(map(match, digests))).hexdigest() for match in matches]
    assert (len(patterns), len(digests)) == (200, DAYS * 1440)
    assert [each for each in zip(patterns, ours, theirs, strict=True) if each[1] != each[2]] == []
    assert len(set(ours)) > 150
    figure(f"every minute of {DAYS} days, 200 patterns: 0 differences to the reference's matcher")
