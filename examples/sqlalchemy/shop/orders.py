"""How an order is placed: in one transaction with the job that sends its receipt."""

from collections.abc import Mapping
from decimal import Decimal

from sqlalchemy import Select, func, select
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from shop.models import Line, Order
from shop.tasks import Item, Receipt, send_receipt

Basket = Mapping[str, Decimal]
LIMIT = 100


class OverLimit(Exception):
    """The customer's limit is exceeded. The caller rolls back the order and its job."""


def place_order(session: Session, email: str, basket: Basket) -> Order:
    """Add an order and its job to the session's transaction; the caller commits."""
    order = new_order(email, basket)
    session.add(order)
    session.flush()  # the order gets its id
    send_receipt.using(conn=session).enqueue(receipt_of(order, basket))
    if session.scalars(bought_by(email)).one() > LIMIT:
        raise OverLimit(f"{email} has no credit left")
    return order


async def place_order_async(session: AsyncSession, email: str, basket: Basket) -> Order:
    """The same in async code."""
    order = new_order(email, basket)
    session.add(order)
    await session.flush()
    await send_receipt.using(conn=session).aenqueue(receipt_of(order, basket))
    if (await session.scalars(bought_by(email))).one() > LIMIT:
        raise OverLimit(f"{email} has no credit left")
    return order


def new_order(email: str, basket: Basket) -> Order:
    lines = [Line(product=product, price=price) for product, price in basket.items()]
    return Order(email=email, lines=lines)


def receipt_of(order: Order, basket: Basket) -> Receipt:
    items = [Item(product, price) for product, price in basket.items()]
    return Receipt(order.id, order.email, items)


def bought_by(email: str) -> Select[tuple[Decimal]]:
    """What all orders of a customer cost."""
    prices = select(func.coalesce(func.sum(Line.price), 0))
    return prices.join(Order, Line.order_id == Order.id).where(Order.email == email)
