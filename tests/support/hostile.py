"""Text by which others could forge lines of a log or control a terminal."""

# C0 without the tab, DEL and C1; separators of lines and paragraphs; marks of direction.
CONTROLS = "".join(map(chr, [*range(0x09), *range(0x0A, 0x20), 0x7F, *range(0x80, 0xA0)]))
SEPARATORS = "\u2028\u2029"
DIRECTIONS = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
HOSTILE = CONTROLS + SEPARATORS + DIRECTIONS

FORGED = "[core] ERROR: forged"

# It clears the screen, leaves the alternate one and sets a title; then it begins a line.
TEXT = f"begin {HOSTILE} \x1b[2J\x1b[?1049l\x1b]2;forged\x07 \x9b2J\r\n{FORGED}\r{FORGED} end"

# Names of tasks that break formats of metrics.
HOSTILE_NAMES = [
    'quote"quote',
    "line\nbreak",
    "carriage\rreturn",
    "back\\slash",
    'all\\"\n\\n',
    "x" * 60_000,
    '{le="1"} 5\n# EOF',
    "zażółć 🐘",
    "\ud800",
    "\x00",
    " ",
]


def unsafe(text: str) -> list[str]:
    """What a log must not hold: the characters above, and lines that are not the log's own."""
    lines = [line for line in text.split("\n") if line.startswith(FORGED)]
    return [*(f"{ord(each):04x}" for each in HOSTILE if each != "\n" and each in text), *lines]
