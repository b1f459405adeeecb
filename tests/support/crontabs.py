"""Crontabs by a seed: good ones and bad ones of every kind, to be compared and to be mutated."""

import string
from collections.abc import Callable, Sequence
from random import Random
from typing import TypeVar

T = TypeVar("T")

LETTERS = string.ascii_letters + "_"
FIELDS = ((0, 59), (0, 23), (1, 31), (1, 12), (0, 6))

BLANKS = (" ", "  ", "\t", "\v", "\f", "\xa0", "\u1680", "\u2003 ", "\u3000", "\ufeff", "\u202f")
LINE_ENDS = ("\r", "\u2028", "\u2029")
NO_BLANKS = ("\x1c", "\x85", "\u180e", "\u200b", "\x00")

COMMENTS = ("#", "# * * * * * task", "#\ttext # {", "  # behind blanks", "\ufeff#", "# \ud800 ü")
EMPTY = ("", " ", "\t \xa0", "\u2028", "\r", "\ufeff")

WRONG_FIELDS = (
    "60", "24", "32", "13", "8", "99999999999999999999", "9" * 400, "50-70", "0-99", "5-5", "7-3",
    "7-8", "010-9", "*/0", "*/00", "*/", "*/-1", "*/2/2", "*/1.5", "*/x", "1-5/2", "", ",", ",1",
    "1,", "1,,2", "-", "-1", "1-", "1--2", "1-2-3", "--", "**", "*5", "5*", "*-5", "/5", "MON",
    "jan", "sun-tue", "L", "15W", "5#2", "?", "1.5", "+1", "0x1", "1e1", "٣", "１", "²", "1;2",
    "1\u200b", "*\x00", "\ud800",
)  # fmt: skip

WRONG_LINES = (
    "@daily task", "@reboot task", "@every_minute task", "* * * * task", "* * * * *",
    "* * * * * * task", "0 * * * * * task", "task", "* * * * *task", "*/5 ****  task",
    "* * * * * task # comment", "* * * * * task task", "* * * * * {}", "* * * * * ?id=a",
    "* * * * * task ? id=a", "* * * * * task ?", "* * * * * task ? {}", "* * * * * task?id=a",
    "* * * * * task {} ?id=a", "* * * * * task {a: 1} end", "* * * * * task {} {}",
    "* * * * * task{}", "* * * * * task id=a", "* * * * * task ?id=a{}", "* * * * * task [1]",
    "* * * * * task 'text'", "* * * * * task null", "* * * * * task {", "* * * * * task }",
    "* * * * * task {}}", "* * * * * task {a: 1};", "; * * * * * task", "// * * * * * task",
    "MAILTO=root", "TZ=Europe/Berlin", "* * * * * root\\ task", '"* * * * * task"',
)  # fmt: skip

WRONG_TASKS = (
    "1task", "-task", "/task", ":task", "tâche", "ta.sk", "ta\u200bsk", "task!", "a?b", "a=b",
    "a\\b", "a#b", "a%41", "a+b", "a,b", "a@b", "ａ", "ſ", "a\x00", "a\ud800", "${a}", "(a)",
)  # fmt: skip

WRONG_PAIRS = (
    "Id=a", "ID=a", "key=a", "max_attempts=3", "maxAttempts=3", "tz=UTC", "%", "=", "=a", "a", "id",
    "id=", "id=1a", "id=-a", "id=a:b", "id=a/b", "id=a%20b", "id=a+b", "id=%C3%A4", "id==a",
    "id=a=b", "id=a?b", "id=a%0A", "fill=", "fill=1", "fill=d", "fill=1y", "fill=1d+2h",
    "fill=-1d", "fill=1.5d", "fill=1D", "fill=%201d", "fill=1d%0a", "fill=1d2", "fill=1dd",
    "fill=٣d", "max=", "max=-1", "max=+1", "max=%2B1", "max=1.5", "max=1e3", "max=0x10", "max=ten",
    "max=٣", "max=1%0A", "max=1_0", "queue=", "queue=a/b", "queue=a.b", "queue=a%20b", "queue=ü",
    "queue=a%0a", "queue=%00", "jobKey=a%0Ab", "jobKey=a%0d", "jobKey=%E2%80%A8", "jobKey=\n",
    "jobKeyMode=", "jobKeyMode=unsafe_dedupe", "jobKeyMode=REPLACE", "jobKeyMode=replace%20",
    "priority=", "priority=-", "priority=--1", "priority=+1", "priority=1.5", "priority=1-",
    "priority=%201", "priority=−1", "jobkey=a", "__proto__=a", "constructor=a", "toString=a",
    "id%00=a", "%69%64%20=a", "i+d=a", "id%=a", "jobKey[]=a",
)  # fmt: skip

KEYS = (
    "a", "a%20b", "a+b", "%C3%A4", "ä", "名", "%F0%9F%98%80", "\U0001f600", "a=b", "==", "a?b", "?",
    "{a}", "a%26b", "a%3Db", "%2B", "%25", "%2541", "100%", "%", "%%", "%zz", "%4", "%u0041",
    "a%zz%41", "%ff", "%C3", "%C3x", "%E2%82", "%ED%A0%80", "%F0%9F", "%C0%80", "%fF%Fe", "%80%41",
    "a%2", "+%zz+", "%41%", "\x85", "\u200b", "%09", "%0B", "%C2%85", "%7F", "'", '"', "#", "\\",
    "x" * 512,
)  # fmt: skip

# What one of us takes and the other does not, or differently.
ODD_PAIRS = (
    "max=0", "max=00", "max=32768", "max=99999999999999999999", "max=" + "9" * 400,
    "priority=32768", "priority=-32769", "priority=" + "9" * 30, "priority=-" + "9" * 400,
    "queue=" + "q" * 129, "jobKey=", "jobKey", "jobKey=" + "k" * 513, "jobKey=%00", "jobKey=a%00b",
    "jobKey=\ud800", "jobKey=%ffä", "jobKey=ä%zz%41", "jobKey=Ċ%ff", "jobKey=%F0%9F\U0001f600",
    "fill=99999999999999999999w", "fill=1000000000d", "fill=" + "9" * 400 + "s",
    "fill=123456789w1s",
)  # fmt: skip

NAMES = (
    "a", "b", "_", "$", "a1", "camelCase", "null", "true", "NaN", "Infinity", "if", "__proto__",
    "constructor", "toString", "_cron", "ü", "名", "Ⅰ", "〡", "a\u200c", "a\u0301", "\U0001d400",
    "\\u0061", "a\\u0062", "\\u00fc", "\\u0024", "a\\u200d", "'a'", '"a"', "''", '""', "'a b'",
    "'1'", '"\\u0041"', "'\\x41'", "'__proto__'", "'a\\\\b'", '"a\\"b"', "'ä'", "'a.b'", "'0'",
)  # fmt: skip

SCALARS = (
    "null", "true", "false", "0", "-0", "+0", "1", "-1", "+1", "42", "0x1F", "0XaB", "-0x10",
    "+0x0", "1.5", ".5", "5.", "-.5", "+5.e1", "1e5", "1E+05", "1e-7", "-1.5e-3", "0.1", "0.0",
    "1e21", "1e300", "1e-400", "123456789.123456789", "9007199254740991", "-9007199254740991",
    "9007199254740992", "''", '""', "'a'", '"a"', "'it\\'s'", '"it\'s"', "'\"'", "'\\\"'", "'\\n'",
    "'\\t\\b\\f\\r\\v'", "'\\x41'", "'\\u00e9'", "'\\uD83D\\uDE00'", "'é'", "'名'", "'\U0001f600'",
    "'\\q'", "'\\\\'", "'\\/'", "'//'", "'/* */'", "'{'", "'}'", "'a\tb'", "'\x01'", "'\x7f'",
    "'\xa0'", "'\ufeff'", "' '", "'?'", "'NaN'", "'#'", "'\\ü'", "'\\\\u0000'", "'\x85'",
)  # fmt: skip

# What one of us takes and the other does not, or differently.
ODD_SCALARS = (
    "NaN", "+NaN", "-NaN", "Infinity", "-Infinity", "+Infinity", "1e999", "-1e309", "'\\0'",
    "'\\u0000'", "'\\x00'", "'\x00'", "'\\ud800'", "'\\udc00\\ud800'", "'\ud800'",
    "9007199254740993", "-12345678901234567890", "0xFFFFFFFFFFFFFFFFFF", "1" * 30, "9" * 320,
    "[" * 120 + "]" * 120, "{a:" * 80 + "1" + "}" * 80,
)  # fmt: skip

WRONG_VALUES = (
    "", "nul", "nullx", "True", "None", "undefined", "nan", "infinity", "INFINITY", "Infin", "01",
    "00", "-01", "0b1", "0o7", "0x", "0xg", "0x1.5", "1e", "1e+", "e5", ".", ".e5", "-", "+", "--1",
    "+-1", "- 1", "1_000", "1n", "1.2.3", "1,5", "1a", "0x1g", "5.a", "٣", "'", '"', "'a", "a'",
    "'a\"", "'\\'", "'\\1'", "'\\01'", "'\\9'", "'\\x4'", "'\\xg0'", "'\\u004'", "'\\u{41}'",
    "`a`", "a", "a b", "'a' 'b'", "'a'+'b'", "[", "]", "[,]", "[1,,2]", "[,1]", "[1 2]", "[1;2]",
    "{", "{,}", "{a}", "{a:}", "{:1}", "{a 1}", "{a=1}", "{a:1 b:2}", "{1:1}", "{-a:1}", "{a-b:1}",
    "{a.b:1}", "{[a]:1}", "{a:1;}", "{...a}", "{a:1,,}", "/", "/*", "/* *", "*/", "/**/", "//",
    "# 1", "1 # one", "(1)", "new Date()", "/a/", "\x851", "\u180e1", "\u200b1", "@",
    "{\\u0020a:1}", "{a\\u0020:1}", "{\\x61:1}", "{'a:1}", "{a':1}", "{ :1}", "{a::1}", "\x00",
)  # fmt: skip


class Crontabs:
    """Each call gives another text; the same seed gives the same ones."""

    def __init__(self, seed: int | str) -> None:
        self._random = Random(seed)
        self._count = 0

    def crontab(self) -> str:
        """Draw some lines. Node rejects about half of them."""
        lines = [self._line() for _ in range(self._one_of((1, 1, 1, 2, 2, 3, 6)))]
        if self._chance(0.04):
            lines.append(self._one_of(lines))
        ends = self._one_of((["\n"], ["\r\n"], ["\n", "\r\n", "\n\n"]))
        text = "".join(line + self._one_of(ends) for line in lines)
        return self._one_of(("", "", "", "\ufeff", "\n")) + self._one_of(
            (text, text.rstrip("\r\n"))
        )

    def pattern(self) -> str:
        """Five good fields."""
        return " ".join(self._field(*bounds) for bounds in FIELDS)

    def payload(self) -> str:
        """A good payload, in JSON5."""
        return self._object(depth=self._one_of((0, 1, 1, 2, 4)))

    # Lines

    def _line(self) -> str:
        if self._chance(0.12):
            return self._one_of((*COMMENTS, *EMPTY))
        if self._chance(0.05):
            return self._one_of(WRONG_LINES)
        return self._edge() + self._fields() + self._command() + self._edge()

    def _edge(self) -> str:
        return self._one_of((*BLANKS, *LINE_ENDS)) if self._chance(0.15) else ""

    def _blank(self) -> str:
        if self._chance(0.004):
            return self._one_of((*LINE_ENDS, *NO_BLANKS))
        return self._one_of(BLANKS) if self._chance(0.15) else " "

    def _wide_blank(self) -> str:
        """Around the fields ends of lines are blanks too."""
        return self._one_of(LINE_ENDS) if self._chance(0.02) else self._blank()

    # Fields

    def _fields(self) -> str:
        fields = [self._field(*bounds) for bounds in FIELDS]
        if self._chance(0.09):
            fields[self._random.randrange(5)] = self._wrong_field()
        return "".join(field + self._wide_blank() for field in fields)

    def _wrong_field(self) -> str:
        wrong = self._one_of(WRONG_FIELDS)
        return self._one_of((wrong, wrong, f"1,{wrong}", f"{wrong},*"))

    def _field(self, least: int, most: int) -> str:
        if self._chance(0.35):
            return "*"
        count = self._one_of((1, 1, 1, 1, 2, 3, 8))
        return ",".join(self._part(least, most) for _ in range(count))

    def _part(self, least: int, most: int) -> str:
        top = 7 if most == 6 else most
        match self._one_of(("number", "number", "range", "steps", "all")):
            case "number":
                return self._number(self._random.randint(least, top))
            case "range":
                first = self._random.randint(least, top - 1)
                return f"{self._number(first)}-{self._number(self._random.randint(first + 1, top))}"
            case "steps":
                step = self._one_of((1, 2, 3, 5, 7, 15, 40, 1000, 10**30))
                return f"*/{self._number(step)}"
            case _:
                return "*"

    def _number(self, value: int) -> str:
        zeros = self._one_of((1, 2, 30)) if self._chance(0.08) else 0
        return "0" * zeros + str(value)

    # Commands

    def _command(self) -> str:
        text = self._task()
        if self._chance(0.6):
            text += self._blank() + "?" + self._options()
        if self._chance(0.6):
            text += self._blank() + self._any_payload()
        return text

    def _task(self) -> str:
        if self._chance(0.03):
            return self._one_of(WRONG_TASKS)
        self._count += 1
        if self._chance(0.01):
            return "t" * 129
        letters = LETTERS + string.digits + ":/-"
        word = "".join(self._random.choices(letters, k=self._one_of((0, 3, 8, 20, 120))))
        return self._one_of(LETTERS) + word + str(self._count)

    # Options

    def _options(self) -> str:
        makers = self._random.sample(self._pairs(), k=self._one_of((1, 1, 2, 3, 7)))
        pairs = [make() for make in makers]
        if self._chance(0.08):
            pairs.append(self._one_of(WRONG_PAIRS))
        if self._chance(0.06):
            pairs.append(self._one_of(ODD_PAIRS))
        if self._chance(0.02):
            pairs.append(self._one_of(pairs))
        if self._chance(0.08):
            pairs.insert(self._random.randrange(len(pairs) + 1), "")
        return "&".join(pairs) + ("&" if self._chance(0.05) else "")

    def _pairs(self) -> list[Callable[[], str]]:
        return [
            lambda: self._pair("id", f"{self._one_of(LETTERS)}{self._id()}"),
            lambda: self._pair("fill", self._period()),
            lambda: self._pair("max", self._number(self._one_of((1, 3, 25, 32767)))),
            lambda: self._pair("queue", self._one_of(("q", "a:b", "-", "_1", "q" * 128))),
            lambda: f"jobKey={self._one_of(KEYS)}",
            lambda: self._pair("jobKeyMode", self._one_of(("replace", "preserve_run_at"))),
            lambda: self._pair("priority", self._priority()),
        ]

    def _id(self) -> str:
        self._count += 1
        return "".join(self._random.choices(LETTERS + "-0", k=3)) + str(self._count)

    def _period(self) -> str:
        counts = (0, 1, 2, 90, 1000, 40_000)
        parts = [f"{self._number(self._one_of(counts))}{self._one_of('smhdw')}" for _ in range(3)]
        return "".join(parts[: self._one_of((1, 1, 2, 3))])

    def _priority(self) -> str:
        sign = self._one_of(("", "-"))
        return sign + self._number(self._one_of((0, 1, 100, 32767)))

    def _pair(self, key: str, value: str) -> str:
        return f"{self._quoted(key)}={self._quoted(value)}"

    def _quoted(self, text: str) -> str:
        """Some letters in percents."""
        if not self._chance(0.15):
            return text
        return "".join(f"%{ord(each):02X}" if self._chance(0.4) else each for each in text)

    # Payloads

    def _any_payload(self) -> str:
        text = self.payload()
        if self._chance(0.06):
            return self._damaged(text)
        if self._chance(0.06):
            return f"{{{self._one_of(NAMES)}: {self._one_of(WRONG_VALUES)}}}"
        if self._chance(0.06):
            return f"{{{self._one_of(NAMES)}: [1, {self._one_of(ODD_SCALARS)}]}}"
        if self._chance(0.03):
            return self._one_of(("{}//}", "{/* { */}", "{a:1}/*}*/ //}", "{}/}", "{'}", "{//}"))
        return text

    def _damaged(self, text: str) -> str:
        at = self._random.randrange(len(text))
        return text[:at] + self._one_of(("", "", ",", "}", "'", "\\", "0", "\x00")) + text[at + 1 :]

    def _value(self, depth: int) -> str:
        if depth <= 0 or self._chance(0.5):
            return self._one_of(SCALARS)
        return self._object(depth - 1) if self._chance(0.5) else self._array(depth - 1)

    def _object(self, depth: int) -> str:
        members = [
            f"{self._gap()}{self._one_of(NAMES)}{self._gap()}:{self._gap()}{self._value(depth)}"
            for _ in range(self._one_of((0, 1, 1, 2, 3)))
        ]
        return f"{{{self._listed(members)}}}"

    def _array(self, depth: int) -> str:
        values = [self._gap() + self._value(depth) for _ in range(self._one_of((0, 1, 2, 4)))]
        return f"[{self._listed(values)}]"

    def _listed(self, parts: Sequence[str]) -> str:
        comma = "," if parts and self._chance(0.2) else ""
        return ",".join(part + self._gap() for part in parts) + comma + self._gap()

    def _gap(self) -> str:
        """What may stand between the words of JSON5."""
        if self._chance(0.7):
            return ""
        return self._one_of((" ", "  ", "\t", "\xa0", "\u3000", "/**/", "/* a } */", "/***/", "\v"))

    # Chances

    def _chance(self, share: float) -> bool:
        return self._random.random() < share

    def _one_of(self, things: Sequence[T]) -> T:
        return self._random.choice(things)
