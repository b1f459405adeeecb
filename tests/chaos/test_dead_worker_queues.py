"""A recovery keeps the named queue locked of a job that it could not release."""

from datetime import timedelta

from graphile_worker._sql.queries.workers import recover_jobs, register_pool
from tests.laboratory.history_checker import check, install_audit, read_audit
from tests.support.pools import open_pool


def test_a_queue_stays_locked_while_the_job_of_its_dead_pool_cannot_be_recovered(database, sql):
    install_audit(database.dsn, database.schema)
    for _ in range(2):
        sql.run("select :schema.add_job('task', queue_name => 'q')")
    with open_pool(database) as dead:
        heir = dead.with_id("heir")
        dead.connection.run(register_pool(dead.id, timedelta(0), {}))
        held = dead.claim_one()
        in_the_way = sql.another()
        in_the_way.run("begin")
        in_the_way.run("select from :schema._private_jobs where id = $1 for update", held.job.id)

        sweep = recover_jobs([dead.id], timedelta(0), 3, is_confirmed_dead=True)
        assert dead.connection.run(sweep) == []
        assert heir.claim() == []
        # Not by closing, because the server may notice that later.
        in_the_way.run("rollback")
        in_the_way.close()

        # The next one takes both.
        assert len(dead.connection.run(sweep)) == 1
        assert len(heir.claim()) == 1

    report = check(read_audit(database.dsn, database.schema))
    assert report.broken <= {"I7"}, "\n".join(report.lines())
