"""Install the schema of the queue, unless a worker has already installed it."""

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
    """Keep the queue: other programs may use it, and its jobs would be lost."""
