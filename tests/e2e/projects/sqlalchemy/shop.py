"""A program whose orders and jobs are committed together."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import timedelta

from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from graphile_worker import App, JobContext

app = App()
new_session: Callable[[], AbstractContextManager[Session]] = Session


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"

    id: Mapped[int] = mapped_column(primary_key=True)
    paid: Mapped[bool] = mapped_column(default=False)


@app.task
def charge(order_id: int) -> None:
    with new_session() as session:
        order = session.get(Order, order_id)
        if order is None:
            raise LookupError(f"no order {order_id}")
        order.paid = True
        session.commit()
        session.refresh(order)


@app.task
async def remind(ctx: JobContext, order_id: int) -> None:
    async with ctx.connection() as conn:
        await conn.execute("select 1")
    await ctx.add_job("of_node", {"order_id": order_id})


def place_order(session: Session) -> int:
    order = Order()
    session.add(order)
    session.flush()
    charge.using(conn=session).enqueue(order.id)
    remind.using(conn=session, run_at=timedelta(days=1)).enqueue(order.id)
    session.commit()
    return order.id


async def place_order_async(session: AsyncSession) -> int:
    order = Order()
    session.add(order)
    await session.flush()
    await remind.using(conn=session).aenqueue(order.id)
    await session.commit()
    return order.id
