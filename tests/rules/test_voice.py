"""Pages, comments, messages and test names use the words of the project: see tools/voice.py."""

from pathlib import Path

import pytest

from tools import voice

PATHS = [
    *("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "AGENTS.md"),
    *("docs", "examples", "deploy", "src", "tests"),
]


def test_no_file_uses_an_avoided_word():
    paths = [voice.ROOT / path for path in PATHS]

    found = [str(each) for path in voice.list_files(paths) for each in voice.check(path)]

    assert found == []


def test_an_avoided_word_is_found_in_comments_strings_and_over_line_breaks(tmp_path: Path):
    file = tmp_path / "module.py"
    file.write_text('# A job that\n# nobody has.\n"""It is tried\nagain."""\nname = "nobody"\n')

    found = [(each.line, each.word) for each in voice.check(file)]

    assert found == [(3, "tried again"), (2, "nobody")]


def test_a_line_with_the_marker_may_use_the_word(tmp_path: Path):
    file = tmp_path / "module.py"
    file.write_text(f"# The connection was refused.  {voice.MARKER}\n")

    assert voice.check(file) == []


@pytest.mark.parametrize("word", ["nobody", "so many", "is no", "hands it back"])
def test_an_avoided_word_has_a_replacement(word):
    [(_, found, replacement)] = voice.find_words(f"A text with {word} in it")

    assert found == word
    assert replacement


def test_a_page_is_checked_without_its_code_and_addresses(tmp_path: Path):
    page = tmp_path / "page.md"
    page.write_text(
        "# Nobody\n\n```sh\nnobody\n```\n\n`nobody` and [a page](nobody.md)\n<!-- nobody -->\n"
    )

    found = [(each.line, each.word) for each in voice.check(page)]

    assert found == [(1, "Nobody")]


def test_words_are_counted_outside_code_blocks():
    assert voice.count_words("# Two words\n\n```sh\nnot these\n```\n\n| a | `b` | – |\n") == 4
