import httpx
from graphile_worker.testing import Harness

from shop.tasks import send_receipt

TEA = {"email": "ada@example.com", "product": "tea"}


async def test_an_order_is_answered_with_its_job(shop: httpx.AsyncClient, gw: Harness) -> None:
    answer = await shop.post("/orders", json=TEA)

    assert answer.status_code == 202
    job = await gw.aassert_enqueued(send_receipt, order_id=answer.json()["order_id"])
    assert answer.json()["job_id"] == job.id
    assert (await shop.get(answer.headers["location"])).json()["state"] == "waiting"


async def test_the_receipt_is_sent_once(shop: httpx.AsyncClient, gw: Harness) -> None:
    answer = (await shop.post("/orders", json=TEA)).json()

    await gw.adrain()

    order = (await shop.get(f"/orders/{answer['order_id']}")).json()
    assert order["receipt_sent_at"] is not None
    assert (await shop.get(f"/jobs/{answer['job_id']}")).status_code == 404
    await send_receipt.aenqueue(answer["order_id"])
    await gw.adrain()
    assert (await shop.get(f"/orders/{answer['order_id']}")).json() == order


async def test_an_order_that_cannot_be_served_leaves_no_job(
    shop: httpx.AsyncClient, gw: Harness
) -> None:
    for product in ("coffee", "tea", "tea", "tea"):
        answer = await shop.post("/orders", json=TEA | {"product": product})

    assert answer.status_code == 409
    assert len(await gw.aenqueued()) == 2
