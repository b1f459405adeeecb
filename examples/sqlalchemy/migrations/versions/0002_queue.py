"""The schema of the queue, unless a worker, here or in another language, has installed it."""

import sqlalchemy as sa
from alembic import op
from graphile_worker import migration_statements

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    if sa.inspect(op.get_bind()).has_table("migrations", schema="graphile_worker"):
        return
    for statement in migration_statements("graphile_worker"):
        op.execute(statement)


def downgrade() -> None:
    """Nothing: others may use the queue, and its jobs would be lost."""
