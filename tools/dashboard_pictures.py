"""Photograph the dashboard: `python -m tools.dashboard_pictures [FOLDER]`.

The pictures show a real run: a PostgreSQL server, a worker and `graphile-worker dashboard` are
started, and a browser opens the pages. Without a folder, the pictures of the documentation are
written. With one, every page is, for each scene, light and dark, wide and narrow. Times and ids
differ from run to run.
"""

import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg
from playwright.sync_api import Browser, Page

from graphile_worker import sync
from tests.support.browser import chromium
from tests.support.cluster import Cluster, free_port
from tests.support.processes import Programs, eventually

ROOT = Path(__file__).parent.parent
IMAGES = ROOT / "docs" / "images" / "dashboard"
MAJOR = 18
SETTLE_SECONDS = 60
TOKEN = "pictures-0123456789"

SIZES = {"wide": (1280, 800), "phone": (390, 844)}
SCHEMES = ("light", "dark")

TASKS = """
import time
from datetime import timedelta

from graphile_worker import App, ConcurrencyLimit, JobContext, RateLimit, Retention

KEPT = Retention(results=True, attempts=True)
app = App()


@app.task(retention=KEPT)
def send_email(to: str, template: str = "receipt") -> str:
    time.sleep(0.02)
    return "sent"


@app.task(
    retention=KEPT, limit=RateLimit(600, per=timedelta(minutes=1), burst=60, name="renderer")
)
def render_pdf(order_id: int) -> None:
    if order_id % 3 == 0:
        raise TimeoutError(f"no reply from the renderer within {order_id % 7 + 20} s")
    time.sleep(0.05)


@app.task(retention=KEPT)
def sync_stock(shop: str) -> None:
    raise ConnectionError(f"connection to {shop}.example.com refused")


@app.task
def charge_card(order_id: int) -> None:
    time.sleep(0.01)


@app.task
async def rebuild_search_index(ctx: JobContext, catalog: str) -> None:
    import asyncio

    ctx.progress(0.4, "page 4 of 10")
    await asyncio.sleep(3600)


@app.task(limit=ConcurrencyLimit(1))
async def transcode(ctx: JobContext, video: str) -> None:
    import asyncio

    await asyncio.sleep(3600)


@app.cron("0 4 * * *")
@app.task
def send_newsletter() -> None:
    pass


@app.cron("*/15 * * * *")
@app.task
def import_feed() -> None:
    pass
"""

# Locks of a Node worker and of a Python worker that died, and jobs behind them.
BROKEN = """
select graphile_worker.add_job(
  'charge_card',
  json_build_object('order_id', n, 'card_token', 'tok_' || n),
  'billing',
  now() - interval '46 min'
)
from generate_series(1, 215) as n;
update graphile_worker._private_jobs
set locked_at = now() - interval '47 min', locked_by = 'pool-3fa94c1d77e0aa19b2', attempts = 1
where id = (select min(id) from graphile_worker._private_jobs);
update graphile_worker._private_job_queues
set locked_at = now() - interval '47 min', locked_by = 'pool-3fa94c1d77e0aa19b2'
where queue_name = 'billing';
select graphile_worker.add_job(
  'sent_email', '{"to": "ada@example.com"}', run_at => now() - interval '3 min'
);
"""

BUSY = """
select graphile_worker.add_job(
  'send_email', json_build_object('to', 'user' || n || '@example.com')
)
from generate_series(1, 3000) as n;
select graphile_worker.add_job('render_pdf', json_build_object('order_id', 4700 + n))
from generate_series(1, 60) as n;
select graphile_worker.add_job(
  'send_email',
  json_build_object('to', 'later' || n || '@example.com'),
  run_at => now() + n * interval '7 min'
)
from generate_series(1, 90) as n;
select graphile_worker.add_job('rebuild_search_index', '{"catalog": "spring"}', 'search');
select graphile_worker.add_job('transcode', json_build_object('video', 'v' || n || '.mp4'))
from generate_series(1, 8) as n;
select graphile_worker.add_job(
  'sync_stock', json_build_object('shop', shop), max_attempts => attempts
)
from unnest(array['lisbon', 'porto', 'faro'], array[1, 2, 25]) as t(shop, attempts);
"""

# The newest job of each kind, for the paths of pages.
FIND_JOBS = """
select
  max(id) filter (where locked_at is null and attempts = 0 and payload::text like '%card_token%'),
  max(id) filter (where locked_at is null and attempts between 1 and max_attempts - 1),
  max(id) filter (where locked_at is not null and payload::text like '%catalog%'),
  max(id) filter (where locked_at is null and payload::text like '%.mp4%')
from graphile_worker._private_jobs
"""


@dataclass(frozen=True, slots=True)
class Picture:
    """A page, and whether the documentation shows it."""

    name: str
    path: str
    is_documented: bool = True
    keys: tuple[str, ...] = ()
    """Keys to press before the picture."""
    buttons: tuple[str, ...] = ()
    """The beginnings of the names of buttons to press after the keys."""


PICTURES = [
    Picture("overview", ""),
    Picture("jobs", "jobs"),
    Picture("jobs-failing", "jobs?q=state:retrying,failed", is_documented=False),
    Picture("jobs-mistake", "jobs?q=colour:red", is_documented=False),
    Picture(
        "bulk",
        "jobs?q=queue:billing",
        keys=("a",),
        buttons=("Select all", "Reschedule", "Preview"),
    ),
    Picture("job", "jobs/{waiting}"),
    Picture("job-retrying", "jobs/{retrying}", is_documented=False),
    Picture("job-running", "jobs/{running}", is_documented=False),
    Picture("job-limited", "jobs/{limited}", is_documented=False),
    Picture("errors", "errors"),
    Picture("queues", "queues"),
    Picture("tasks", "tasks"),
    Picture("limits", "limits"),
    Picture("workers", "workers"),
    Picture("cron", "cron"),
    Picture("history", "history"),
    Picture("enqueue", "enqueue"),
    Picture("audit", "audit"),
    Picture("diagnosis", "diagnosis"),
    Picture("help", "", is_documented=False, keys=("?",)),
]


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else None
    scenes = ("broken",) if folder is None else tuple(sys.argv[2:]) or ("empty", "busy", "broken")
    if folder is None:
        IMAGES.mkdir(parents=True, exist_ok=True)
    else:
        folder.mkdir(parents=True, exist_ok=True)
    for scene in scenes:
        with open_scene(scene) as (cluster, address), chromium() as browser:
            for size in SIZES if folder else ("wide",):
                for scheme in SCHEMES:
                    photograph_all(browser, cluster, address, folder, scene, size, scheme)
            photograph_outage(browser, cluster, address, folder, scene)


def photograph_all(
    browser: Browser,
    cluster: Cluster,
    address: str,
    folder: Path | None,
    scene: str,
    size: str,
    scheme: str,
) -> None:
    """Photograph every page of a scene."""
    ids = find_jobs(cluster)
    with open_page(browser, address, size, scheme) as page:
        for picture in PICTURES:
            if folder is None and not picture.is_documented:
                continue
            name = f"{picture.name}-{scheme}.png"
            target = IMAGES / name if folder is None else folder / f"{scene}-{size}-{name}"
            if show(page, address + picture.path.format_map(ids), picture):
                save(page, target)
    if folder is None:
        with open_page(browser, address, "phone", scheme) as page:
            show(page, address)
            save(page, IMAGES / f"phone-{scheme}.png")


def photograph_outage(
    browser: Browser, cluster: Cluster, address: str, folder: Path | None, scene: str
) -> None:
    """Photograph the overview, and other pages with a folder, while the database is stopped."""
    with (
        open_page(browser, address, "wide", "light") as light,
        open_page(browser, address, "wide", "dark") as dark,
    ):
        cluster.halt()
        for scheme, page in {"light": light, "dark": dark}.items():
            page.wait_for_selector("[data-outage]", timeout=60_000)
            page.wait_for_timeout(3_000)
            name = f"outage-{scheme}.png"
            save(page, IMAGES / name if folder is None else folder / f"{scene}-{name}")
        if folder is None:
            return
        for path in ("jobs", "workers"):
            light.goto(address + path)
            light.wait_for_timeout(3_000)
            save(light, folder / f"{scene}-outage-{path}.png")


@contextmanager
def open_page(browser: Browser, address: str, size: str, scheme: str) -> Iterator[Page]:
    width, height = SIZES[size]
    context = browser.new_context(
        viewport={"width": width, "height": height},
        color_scheme=scheme,  # type: ignore[arg-type]  # one of SCHEMES
        timezone_id="UTC",
        is_mobile=size == "phone",
    )
    page = context.new_page()
    page.goto(f"{address}#token={TOKEN}")
    page.wait_for_selector("main h1, main h2", timeout=30_000)
    # The chart of the overview starts after two samples.
    page.wait_for_timeout(6_000)
    yield page
    context.close()


def show(page: Page, url: str, picture: Picture | None = None) -> bool:
    """Open a page, and press keys and buttons. Return false if the page has no such button."""
    page.goto(url)
    page.wait_for_selector("main h1, main h2", timeout=30_000)
    page.wait_for_timeout(2_500)
    for key in picture.keys if picture else ():
        page.keyboard.press(key)
        page.wait_for_timeout(300)
    for name in picture.buttons if picture else ():
        button = page.get_by_role("button", name=re.compile(f"^{name}")).last
        if not button.is_visible():
            return False
        button.click()
        page.wait_for_timeout(1_000)
    return True


def save(page: Page, target: Path) -> None:
    page.screenshot(path=target)
    print(target)


def find_jobs(cluster: Cluster) -> dict[str, str]:
    """Return the id of a job for each name in the paths."""
    with psycopg.connect(cluster.dsn("shop"), autocommit=True) as connection:
        row = connection.execute(FIND_JOBS.encode()).fetchone()
    names = ("waiting", "retrying", "running", "limited")
    return {name: str(id or 1) for name, id in zip(names, row or (), strict=True)}


@contextmanager
def open_scene(name: str) -> Iterator[tuple[Cluster, str]]:
    """Run a queue in a state, and a dashboard of it; yield the address."""
    cluster = Cluster(MAJOR).start()
    folder = Path(tempfile.mkdtemp())
    try:
        cluster.create_database("shop")
        url = cluster.url("shop")
        with sync.Client(url) as client, Programs(folder, DATABASE_URL=url) as programs:
            client.migrate()
            programs.write("shop.py", TASKS)
            if name == "broken":
                with psycopg.connect(url, autocommit=True) as connection:
                    connection.execute(BROKEN.encode())
            address = start_dashboard(programs, name)
            if name != "empty":
                programs.worker("--app", "shop:app", "-j", "4")
                with psycopg.connect(url, autocommit=True) as connection:
                    connection.execute(BUSY.encode())
                eventually(lambda: is_settled(url), "the first jobs have ended", SETTLE_SECONDS)
                programs.command("limits", "set", "renderer", "300/1m", "--actor", "ada")
            if name == "broken":
                client.pause_queue("import", reason="feed provider is down", actor="ada")
                client.pause_task("sync_stock", reason="stock API is down", actor="ada")
            yield cluster, address
    finally:
        cluster.stop()
        shutil.rmtree(folder)


def start_dashboard(programs: Programs, scene: str) -> str:
    port = free_port()
    environment = {"empty": "development", "busy": "staging"}.get(scene, "production")
    command = ["dashboard", "--port", str(port), "--no-open", "--environment", environment]
    program = programs.command(*command, "--app", "shop:app", GRAPHILE_WORKER_DASHBOARD_TOKEN=TOKEN)
    eventually(lambda: "dashboard:" in program.out, "the dashboard listens", SETTLE_SECONDS)
    return f"http://127.0.0.1:{port}/"


def is_settled(url: str) -> bool:
    with psycopg.connect(url) as connection:
        query = b"select count(*) < 330 from graphile_worker._private_jobs where attempts = 0"
        row = connection.execute(query).fetchone()
        return row is not None and row[0]


if __name__ == "__main__":
    main()
