"""The code blocks of README and docs."""

import re
import shlex
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
KINDS = ("python", "sql", "console")
# A comment before a block can name the file that the block is, or whose end it is.
FENCE = re.compile(
    r"(?:^<!-- (?P<target>file|append): (?P<path>[\w./]+) -->\n\n?)?"
    r"^```(?P<kind>python|sql|console)\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
MIGRATED = "<!-- database: migrated -->"

# Our command or one of Django, with words that a shell passes on as they are, or without their
# single quotes. Other variables of the environment may be set before it.
PLAIN_COMMAND = re.compile(
    r"""((?:\w+="\$\w+" )*)"""
    r"""((?:graphile-worker|django-admin|python manage\.py)(?: +(?:[\w./:,=@%+-]+|'[^']*'))*)"""
)
ASSIGNMENT = re.compile(r"""(\w+)="\$(\w+)" """)


@dataclass(frozen=True)
class Block:
    """One block of a page; those in comments prepare the others and are not shown."""

    kind: str
    text: str
    line: int
    # Where the reader puts the block. Otherwise it runs.
    file: str | None = None
    appends: bool = False

    def write(self) -> None:
        """Put the block into its file."""
        assert self.file is not None
        path = Path(self.file)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a" if self.appends else "w") as file:
            file.write(self.text)


def pages() -> list[Path]:
    found = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [page for page in found if blocks(page)]


def blocks(page: Path) -> list[Block]:
    text = page.read_text()
    return [
        Block(
            match["kind"],
            match["text"],
            text.count("\n", 0, match.start("kind")) + 1,
            match["path"],
            match["target"] == "append",
        )
        for match in FENCE.finditer(text)
    ]


def wants_schema(page: Path) -> bool:
    return MIGRATED in page.read_text()


def split_plain_command(
    command: str, environment: Mapping[str, str]
) -> tuple[list[str], dict[str, str]] | None:
    """Return the words and the variables of a Python command, unless it needs a shell."""
    match = PLAIN_COMMAND.fullmatch(command)
    if match is None:
        return None
    changed = {name: environment.get(other, "") for name, other in ASSIGNMENT.findall(match[1])}
    return shlex.split(match[2]), {**environment, **changed}


def counts(pages: Iterable[Path]) -> Counter[str]:
    return Counter(block.kind for page in pages for block in blocks(page))
