"""Alembic's environment: the engine of the shop, and its models for --autogenerate."""

from alembic import context

from shop.database import engine
from shop.models import Base

with engine.connect() as connection:
    # Only the default schema is compared, so autogenerate leaves the queue's alone.
    context.configure(connection=connection, target_metadata=Base.metadata)
    with context.begin_transaction():
        context.run_migrations()
