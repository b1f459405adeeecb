"""The picture of `graphile-worker top`: a screen with its colors, drawn as SVG."""

from xml.etree import ElementTree

import pytest

from tools.top_picture import BACKGROUND, COLORS, DIM, FOREGROUND, PICTURE, Run, draw, read_runs

SVG = "{http://www.w3.org/2000/svg}"


def plain(column: int, text: str) -> Run:
    return Run(column, text, FOREGROUND, is_bold=False, is_inverse=False)


@pytest.mark.parametrize(
    ("line", "runs"),
    [
        ("", []),
        ("   ", []),
        ("READY   12", [plain(0, "READY"), plain(8, "12")]),
        ("one line of text", [plain(0, "one line of text")]),
        (
            "\x1b[31m✕\x1b[39m job",
            [Run(0, "✕", COLORS["31"], is_bold=False, is_inverse=False), plain(2, "job")],
        ),
        (
            "a \x1b[1;33m74\x1b[0m  b",
            [
                plain(0, "a"),
                Run(2, "74", COLORS["33"], is_bold=True, is_inverse=False),
                plain(6, "b"),
            ],
        ),
        (
            "\x1b[2mdim\x1b[22m on",
            [Run(0, "dim", DIM, is_bold=False, is_inverse=False), plain(4, "on")],
        ),
        ("\x1b[7m a \x1b[27m", [Run(0, " a ", FOREGROUND, is_bold=False, is_inverse=True)]),
    ],
)
def test_a_line_is_split_by_style_and_column(line, runs):
    assert list(read_runs(line)) == runs


def test_a_screen_becomes_a_picture_with_its_text():
    drawn = ElementTree.fromstring(draw("a < b\n\x1b[7m & \x1b[0m\n"))

    assert [each.text for each in drawn.findall(f"{SVG}text")] == ["a < b", " & "]
    assert drawn.findall(f"{SVG}text")[1].attrib["fill"] == BACKGROUND


def test_the_picture_of_the_documentation_shows_every_part_of_top():
    root = ElementTree.parse(PICTURE).getroot()
    words = [each.text for each in root.findall(f"{SVG}text")]

    assert root.findtext(f"{SVG}title")
    assert root.findtext(f"{SVG}desc")
    for heading in ("ADDED", "DONE", "READY", "TASK", "RUNNING", "WORKER", "alive"):
        assert any(heading in (each or "") for each in words), heading
    assert any((each or "").startswith("no worker runs") for each in words)
