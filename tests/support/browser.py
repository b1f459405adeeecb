"""Debian's Chromium, driven from a test, and a server for the pages that it looks at."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe  # type: ignore[import-untyped]
from playwright.sync_api import Browser, Page, sync_playwright

# Without what phones home, and without the sandbox, which root cannot have.
SETTINGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]


@contextmanager
def chromium(*settings: str) -> Iterator[Browser]:
    """The browser with further settings, where it is installed."""
    program = shutil.which("chromium-headless-shell")
    if program is None:
        pytest.skip("Chromium is not installed: run tools/chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=[*SETTINGS, *settings])
        yield browser
        browser.close()


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """The address at which the files of a folder are to be had."""
    handler = partial(_Quiet, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


def find_violations(page: Page, **options: Any) -> list[str]:
    """Return what axe-core finds on a page: the rule and its elements."""
    options["resultTypes"] = ["violations"]
    found = Axe().run(page, options=options).response["violations"]
    return [
        f"{page.url} {each['id']}: {[node['html'][:200] for node in each['nodes']]}"
        for each in found
    ]
