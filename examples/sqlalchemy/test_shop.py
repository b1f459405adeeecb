from decimal import Decimal

import pytest
from graphile_worker import JobSpecError
from graphile_worker.testing import Harness
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from shop.orders import OverLimit, place_order, place_order_async
from shop.tasks import Receipt, send_receipt

TEA = {"tea": Decimal("4.20"), "honey": Decimal("3.10")}


def test_an_order_enqueues_its_receipt(gw: Harness, session: Session) -> None:
    order = place_order(session, "ada@example.com", TEA)

    job = gw.assert_enqueued(send_receipt, options={"attempts": 0})
    assert job.payload == {
        "order_id": order.id,
        "email": "ada@example.com",
        "items": [{"product": "tea", "price": "4.20"}, {"product": "honey", "price": "3.10"}],
    }


def test_the_receipt_is_sent(gw: Harness, session: Session) -> None:
    order = place_order(session, "ada@example.com", TEA)
    session.commit()

    gw.drain()

    session.refresh(order)
    assert order.receipt_sent_at is not None


def test_what_is_rolled_back_leaves_no_job(gw: Harness, session: Session) -> None:
    with pytest.raises(OverLimit), session.begin_nested():
        place_order(session, "bob@example.com", {"gold": Decimal(1000)})

    gw.assert_not_enqueued()


def test_a_payload_that_does_not_fit_is_refused(gw: Harness) -> None:
    with pytest.raises(JobSpecError):
        send_receipt.enqueue(Receipt("one", "ada@example.com", []))  # type: ignore[arg-type]


async def test_async_code_does_the_same(gw: Harness, async_session: AsyncSession) -> None:
    order = await place_order_async(async_session, "ada@example.com", TEA)

    job = await gw.aassert_enqueued(send_receipt)
    assert job.payload["order_id"] == order.id
