"""The till: python -m shop [--async] EMAIL PRODUCT=PRICE ..."""

import asyncio
import sys
from decimal import Decimal

from shop.database import async_engine, new_async_session, new_session
from shop.orders import Basket, OverLimit, place_order, place_order_async


def sell(email: str, basket: Basket) -> int:
    with new_session.begin() as session:
        return place_order(session, email, basket).id


async def sell_async(email: str, basket: Basket) -> int:
    try:
        async with new_async_session.begin() as session:
            return (await place_order_async(session, email, basket)).id
    finally:
        await async_engine.dispose()


def main(email: str, *items: str, is_async: bool) -> None:
    pairs = [item.split("=") for item in items]
    basket = {product: Decimal(price) for product, price in pairs}
    try:
        order_id = asyncio.run(sell_async(email, basket)) if is_async else sell(email, basket)
    except OverLimit as error:
        sys.exit(f"rejected: {error}")
    print(f"order {order_id}")


words = sys.argv[1:]
main(*(word for word in words if word != "--async"), is_async="--async" in words)
