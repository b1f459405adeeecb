"""OutputReader: the lines of a program, and those that are kept."""

from collections.abc import AsyncIterator, Sequence

import pytest

from graphile_worker._worker.output import MAX_KEPT_LINES, MAX_LINE_BYTES, OutputReader, format_line


async def iter_chunks(chunks: Sequence[bytes]) -> AsyncIterator[bytes]:
    for chunk in chunks:
        yield chunk


async def read_lines(*chunks: bytes) -> tuple[list[str], str]:
    lines: list[str] = []
    output = OutputReader(iter_chunks(chunks), lines.append)
    await output.read_all()
    return lines, output.last_output


@pytest.mark.parametrize(
    ("chunks", "lines"),
    [
        ([b"a\nb\n"], ["a", "b"]),
        ([b"a\nb"], ["a", "b"]),
        ([b"a", b"b\r\n", b"c"], ["ab", "c"]),
        ([b"\n\n"], ["", ""]),
        ([], []),
    ],
)
async def test_each_line_is_reported_once(chunks, lines):
    assert (await read_lines(*chunks))[0] == lines


async def test_the_last_lines_are_kept():
    lines, last = await read_lines(*(b"%d\n" % number for number in range(100)))

    assert len(lines) == 100
    assert last.splitlines() == lines[-MAX_KEPT_LINES:]


async def test_a_line_without_an_end_costs_no_memory():
    lines, _ = await read_lines(*[b"x" * 100_000] * 20)

    assert lines == ["x" * MAX_LINE_BYTES + "…"]


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (b"plain", "plain"),
        ("é 漢".encode(), "é 漢"),
        (b"\xff", "\ufffd"),
        (b"\x1b[31mred", "\\x1b[31mred"),
        (b"a\rERROR forged", "a\\rERROR forged"),
        (b"a\tb", "a\tb"),
        (b"\x00", "\\x00"),
    ],
)
def test_a_line_is_safe_to_show(line, text):
    assert format_line(line) == text
