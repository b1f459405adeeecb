"""Draw docs/images/top.svg, a picture of `graphile-worker top`: `python -m tools.top_picture`.

The picture shows a real run: a PostgreSQL server, two workers and a program that adds jobs are
started, `top` runs in tmux, and its screen becomes an SVG with the same text and colors. The
times and ids differ from run to run.
"""

import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from html import escape
from pathlib import Path

from graphile_worker import JobSpec, sync
from tests.support.cluster import Cluster
from tests.support.processes import INSTALLED, Programs
from tests.support.tmux import Tmux

PICTURE = Path(__file__).parent.parent / "docs" / "images" / "top.svg"
MAJOR = 18
COLUMNS, ROWS = 98, 32
TITLE = "graphile-worker top"
DESCRIPTION = (
    "A terminal with graphile-worker top: rates, backlog, two findings with the commands that "
    "explain them, tasks with their last errors, running jobs, and two workers."
)

TASKS = {
    "send_email": "import asyncio\nasync def task(payload): await asyncio.sleep(0.05)\n",
    "import_feed": "import asyncio\nasync def task(payload): await asyncio.sleep(1)\n",
    "charge_card": "import asyncio\nasync def task(payload): await asyncio.sleep(600)\n",
    "render_pdf": "async def task(payload): raise TimeoutError('no reply in 30 s')\n",
}
# A misspelled task, which `top` reports, and jobs that wait for one queue or for tomorrow.
FIRST_JOBS = [
    JobSpec("sent_email"),
    *[JobSpec("charge_card", queue_name="billing")] * 15,
    *[JobSpec("send_email", run_at=timedelta(days=1))] * 900,
    *[JobSpec("send_email")] * 4500,
]
PRODUCER = """
import itertools
import time
from graphile_worker import JobSpec, sync

with sync.Client() as client:
    for number in itertools.count():
        tasks = ["send_email"] * 6 + ["import_feed"] * (number % 10 == 0)
        tasks += ["render_pdf"] * (number % 4 == 0)
        client.add_jobs([JobSpec(task) for task in tasks])
        time.sleep(0.1)
"""
# What `top` shows in the end: a critical finding and a warning.
FINDINGS = ["✕ no worker runs", "▲ "]
TIMEOUT_SECONDS = 120

# A dark terminal, on light pages and on dark ones.
BACKGROUND, BORDER = "#15181e", "#3a424c"
FOREGROUND, DIM = "#d6dbe4", "#8b95a3"
COLORS = {
    "31": "#ff7b72",
    "32": "#6bd68a",
    "33": "#ffd166",
    "34": "#79b8ff",
    "35": "#d2a8ff",
    "36": "#7ee0e6",
}
CHARACTER, LINE, SIZE = 8.43, 19, 14
MARGIN, BAR = 24, 34
BUTTONS = {22: "#ff5f57", 42: "#febc2e", 62: "#28c840"}
CODE = re.compile(r"\x1b\[([\d;]*)m")
GAP = re.compile(r"(?: {2,})")


@dataclass(frozen=True, slots=True)
class Run:
    """Text of one style, and the column where it starts."""

    column: int
    text: str
    color: str
    is_bold: bool
    is_inverse: bool


def main() -> None:
    PICTURE.write_text(draw(capture_screen()), encoding="utf-8")
    print(PICTURE)


def capture_screen() -> str:
    """Run a queue and `top`, and return the screen with its color codes."""
    cluster = Cluster(MAJOR).start()
    folder = Path(tempfile.mkdtemp())
    try:
        cluster.create_database("shop")
        return _watch(cluster.url("shop"), folder)
    finally:
        cluster.stop()
        shutil.rmtree(folder)


def _watch(url: str, folder: Path) -> str:
    with Programs(folder, DATABASE_URL=url) as programs, sync.Client(url) as client:
        client.migrate()
        for name, text in TASKS.items():
            programs.write(f"tasks/{name}.py", text)
        programs.worker("-j", "4")
        client.add_jobs(FIRST_JOBS)
        programs.worker("-j", "4")
        programs.python(PRODUCER)
        environment = {**os.environ, "DATABASE_URL": url, "LC_ALL": "C.UTF-8"}
        with Tmux(folder, f"{INSTALLED} top", environment, columns=COLUMNS, rows=ROWS) as terminal:
            for finding in FINDINGS:
                terminal.wait_for_text(finding, TIMEOUT_SECONDS)
            return terminal.colored_text


def draw(screen: str) -> str:
    """Return the SVG of a screen."""
    lines = screen.removesuffix("\n").split("\n")
    width = round(2 * MARGIN + COLUMNS * CHARACTER)
    height = BAR + len(lines) * LINE + MARGIN
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" role="img" font-size="{SIZE}" '
        'font-family="ui-monospace, SFMono-Regular, Menlo, DejaVu Sans Mono, monospace">',
        f"<title>{TITLE}</title>",
        f"<desc>{DESCRIPTION}</desc>",
        f'<rect x="1" y="1" width="{width - 2}" height="{height - 2}" rx="10" '
        f'fill="{BACKGROUND}" stroke="{BORDER}"/>',
        *(f'<circle cx="{x}" cy="20" r="6" fill="{color}"/>' for x, color in BUTTONS.items()),
    ]
    for number, line in enumerate(lines):
        y = BAR + LINE * (number + 1)
        parts += [_draw_run(run, y) for run in read_runs(line)]
    return "\n".join([*parts, "</svg>", ""])


def read_runs(line: str) -> Iterator[Run]:
    """Yield the text of a line by style, without the spaces between columns."""
    color, is_bold, is_inverse, column = FOREGROUND, False, False, 0
    for index, part in enumerate(CODE.split(line)):
        if index % 2 == 0:
            for start, text in _split(part, is_inverse):
                yield Run(column + start, text, color, is_bold, is_inverse)
            column += len(part)
            continue
        for code in (part or "0").split(";"):
            if code in {"0", "", "39", "22"}:
                color = FOREGROUND
            if code in {"0", ""}:
                is_bold, is_inverse = False, False
            elif code == "1":
                is_bold = True
            elif code == "2":
                color = DIM
            elif code == "7":
                is_inverse = True
            elif code == "27":
                is_inverse = False
            elif code == "22":
                is_bold = False
            elif code in COLORS:
                color = COLORS[code]


def _split(text: str, is_inverse: bool) -> Iterator[tuple[int, str]]:
    """Yield the start and the text of each column, so that letters of any width line up."""
    if is_inverse:
        yield 0, text
        return
    start = 0
    for gap in [*GAP.finditer(text), None]:
        end = gap.start() if gap else len(text)
        word = text[start:end]
        if word.strip():
            yield start + len(word) - len(word.lstrip()), word.strip()
        start = gap.end() if gap else end


def _draw_run(run: Run, y: int) -> str:
    x, width = MARGIN + run.column * CHARACTER, len(run.text) * CHARACTER
    weight = ' font-weight="700"' if run.is_bold else ""
    color, ground = run.color, ""
    if run.is_inverse:
        ground = (
            f'<rect x="{x:.1f}" y="{y - 14}" width="{width:.1f}" height="{LINE}" '
            f'fill="{run.color}"/>'
        )
        color = BACKGROUND
    return (
        f'{ground}<text x="{x:.1f}" y="{y}" fill="{color}"{weight} textLength="{width:.1f}" '
        f'xml:space="preserve">{escape(run.text, quote=False)}</text>'
    )


if __name__ == "__main__":
    main()
