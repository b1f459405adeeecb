"""Photograph the pages of the Django admin: `python -m tools.admin_pictures [FOLDER]`.

The pictures show a real run: a PostgreSQL server, a Django project, its development server and a
worker are started, and a browser opens the pages. Without a folder, the pictures of the
documentation are written. With one, every page is, light and dark. Times and ids differ from run
to run.
"""

import json
import shutil
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg
from playwright.sync_api import Page

from tests.support.browser import chromium
from tests.support.cluster import Cluster, free_port
from tests.support.processes import Programs, eventually

ROOT = Path(__file__).parent.parent
PROJECT = ROOT / "tests" / "integrations" / "django" / "project"
IMAGES = ROOT / "docs" / "images"
MAJOR = 18
WIDTH, HEIGHT = 1280, 900
MIN_HEIGHT = 400
SETTLE_SECONDS = 60

TASKS = """
import time

from graphile_worker import Retention, SyncJobContext
from graphile_worker.contrib.django import app

KEPT = Retention(results=True, attempts=True)


@app.task(retention=KEPT)
def send_receipt(order_id: int) -> str:
    return f"receipt-{order_id}.pdf"


@app.task(retention=KEPT)
def render_invoice(order_id: int) -> None:
    raise TimeoutError("no reply of the renderer in 30 s")


@app.task(retention=KEPT)
def sync_stock(shop: str) -> None:
    raise ConnectionError(f"{shop}: connection refused")


@app.task
def charge_card(order_id: int) -> None:
    time.sleep(600)


@app.task
def rebuild_search_index(ctx: SyncJobContext, catalog: str) -> None:
    ctx.progress(0.4, "page 4 of 10")
    time.sleep(600)


@app.task
def send_newsletter(issue: int) -> None:
    pass
"""
JOBS = """
from datetime import timedelta
import demo
from django.contrib.auth.models import User
from graphile_worker.contrib.django import app

User.objects.create_superuser("ada", "ada@example.com", "ada")
for order in range(4700, 4712):
    demo.send_receipt.enqueue(order)
for order in (4703, 4708):
    demo.render_invoice.using(max_attempts=1, job_key=f"invoice-{order}").enqueue(order)
for shop in ("Lisbon", "Porto"):
    demo.sync_stock.enqueue(shop)
demo.rebuild_search_index.enqueue("spring")
for order in (4709, 4710, 4711):
    demo.charge_card.using(queue_name="billing").enqueue(order)
app.add_job("send_receipts", {"order_id": 4712})
demo.send_newsletter.using(run_at=timedelta(days=1), job_key="newsletter-12").enqueue(12)
"""


@dataclass(frozen=True, slots=True)
class Picture:
    """A page, how to reach it, and whether the documentation shows it."""

    name: str
    path: str
    row: str = ""
    """Open the first job of the list with this task."""
    is_documented: bool = False


PICTURES = [
    Picture("jobs", "job/", is_documented=True),
    Picture("job-retrying", "job/?state=retrying", row="sync_stock"),
    Picture("job-failed", "job/?state=failed", row="render_invoice"),
    Picture("job-running", "job/?task=rebuild_search_index", row="rebuild_search_index"),
    # Without a traceback, which has the folders of this machine.
    Picture("job", "job/?task=send_receipts", row="send_receipts", is_documented=True),
    Picture("job-waiting", "job/?task=charge_card&state=waiting", row="charge_card"),
    Picture("action", "job/action/?action=retry&all=1", is_documented=True),
    Picture("action-reschedule", "job/action/?action=reschedule&all=1&q=-task:charge_card"),
    Picture("action-fail", "job/action/?action=fail&all=1&state=scheduled"),
    Picture("action-nothing", "job/action/?action=unlock&all=1"),
    Picture("mistake", "job/?q=colour:red"),
    Picture("workers", "worker/"),
    Picture("outcomes", "outcome/"),
    Picture("outcome", "outcome/?state=failed", row="render_invoice"),
    Picture("outcome-result", "outcome/?state=succeeded", row="send_receipt"),
]


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else None
    with run_project() as address, chromium() as browser:
        for scheme in ("light", "dark"):
            context = browser.new_context(
                viewport={"width": WIDTH, "height": HEIGHT}, color_scheme=scheme
            )
            page = context.new_page()
            log_in(page, address)
            for picture in PICTURES:
                if folder is None and not (picture.is_documented and scheme == "light"):
                    continue
                name = f"django-admin-{picture.name}.png"
                target = IMAGES / name if folder is None else folder / f"{scheme}-{name}"
                photograph(page, f"{address}/admin/graphile_worker/", picture, target)
                print(target)
            context.close()


def log_in(page: Page, address: str) -> None:
    page.goto(f"{address}/admin/")
    page.fill("#id_username", "ada")
    page.fill("#id_password", "ada")
    page.click("input[type=submit]")
    page.wait_for_url(f"{address}/admin/")


def photograph(page: Page, address: str, picture: Picture, target: Path) -> None:
    page.goto(address + picture.path)
    if picture.row:
        page.click(f"tr:has(td:text-is('{picture.row}')) th a")
        page.wait_for_load_state()
    # Without the empty space below the content.
    bottom = page.evaluate("document.querySelector('#content').getBoundingClientRect().bottom")
    height = max(MIN_HEIGHT, round(bottom))
    page.screenshot(
        path=target, full_page=True, clip={"x": 0, "y": 0, "width": WIDTH, "height": height}
    )


@contextmanager
def run_project() -> Iterator[str]:
    """Run a project with jobs in every state, and yield its address."""
    cluster = Cluster(MAJOR).start()
    folder = Path(tempfile.mkdtemp())
    try:
        cluster.create_database("shop")
        shutil.copytree(PROJECT, folder, dirs_exist_ok=True)
        with Programs(folder, **build_environment(cluster)) as programs:
            programs.write("demo.py", TASKS)
            run_to_end(programs, "migrate")
            run_to_end(programs, "shell", "-c", JOBS)
            app = "graphile_worker.contrib.django.worker:app"
            for _ in range(2):
                programs.worker("--app", app, "-j", "4")
            port = free_port()
            server = [sys.executable, "manage.py", "runserver", "--noreload", f"127.0.0.1:{port}"]
            programs.start(server, {})
            address = f"http://127.0.0.1:{port}"
            eventually(lambda: is_served(f"{address}/admin/login/"), "the server answers")
            eventually(lambda: is_settled(cluster), "the jobs have ended", SETTLE_SECONDS)
            yield address
    finally:
        cluster.stop()
        shutil.rmtree(folder)


def build_environment(cluster: Cluster) -> dict[str, str]:
    database = {"NAME": "shop", "USER": "postgres", "HOST": "127.0.0.1", "PORT": cluster.port}
    settings = {
        "DATABASES": {"default": database},
        "GRAPHILE_WORKER": {"IMPORTS": ["demo"]},
        "DEBUG": True,
        "TIME_ZONE": "UTC",
    }
    return {
        "ACME": json.dumps(settings),
        "DJANGO_SETTINGS_MODULE": "acme.settings",
        "PYTHONPATH": ".",
    }


def run_to_end(programs: Programs, *arguments: str) -> None:
    program = programs.start([sys.executable, "manage.py", *arguments], {})
    if program.end(SETTLE_SECONDS):
        raise RuntimeError(program.out + program.err)


def is_served(url: str) -> bool:
    try:
        with urllib.request.urlopen(url):
            return True
    except urllib.error.URLError:
        return False


def is_settled(cluster: Cluster) -> bool:
    """Return whether all receipts are sent, and the other jobs were attempted."""
    with psycopg.connect(cluster.dsn("shop")) as connection:
        row = connection.execute(
            "select count(*) = 12 from graphile_worker_ext.outcomes where succeeded"
        ).fetchone()
        return bool(row and row[0])


if __name__ == "__main__":
    main()
