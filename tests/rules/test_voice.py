"""Comments, messages and test names use the words of the documentation: see tools/voice.py."""

from pathlib import Path

import pytest

from tools import voice


def test_no_file_uses_an_avoided_word():
    paths = [voice.ROOT / "src", voice.ROOT / "tests"]

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
