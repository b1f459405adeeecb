"""Keys: what a terminal sends, read as what was pressed; the rest of it is left for later."""

from graphile_worker._cli.top.view import Key, KeyPress

ESCAPE_SEQUENCES = {
    "\x1b[A": Key.UP,
    "\x1bOA": Key.UP,
    "\x1b[B": Key.DOWN,
    "\x1bOB": Key.DOWN,
    "\x1b[5~": Key.PAGE_UP,
    "\x1b[6~": Key.PAGE_DOWN,
}
SINGLE_KEYS = {
    "\r": Key.ENTER,
    "\n": Key.ENTER,
    "\x7f": Key.BACKSPACE,
    "\x08": Key.BACKSPACE,
    "\x03": Key.QUIT,
    "\x04": Key.QUIT,
}
MAX_SEQUENCE_LENGTH = 32


def read_keys(text: str) -> list[KeyPress]:
    """What was pressed; a key whose sequence is not known is none."""
    found: list[KeyPress] = []
    while text:
        key, text = _read_key(text)
        if key is not None:
            found.append(key)
    return found


def _read_key(text: str) -> tuple[KeyPress | None, str]:
    for sequence, key in ESCAPE_SEQUENCES.items():
        if text.startswith(sequence):
            return key, text[len(sequence) :]
    if text[0] == "\x1b":
        return _read_escape(text)
    if text[0] in SINGLE_KEYS:
        return SINGLE_KEYS[text[0]], text[1:]
    return (text[0] if text[0].isprintable() else None), text[1:]


def _read_escape(text: str) -> tuple[Key | None, str]:
    """The key Esc; or a sequence that we do not know, to its end."""
    if len(text) < 2 or text[1] not in "[O":
        return Key.ESCAPE, text[1:]
    for n, letter in enumerate(text[2:MAX_SEQUENCE_LENGTH], start=2):
        if "@" <= letter <= "~":
            return None, text[n + 1 :]
    return None, ""
