"""A sweep leaves the named queue of a job locked that it could not take."""

from datetime import timedelta

from graphile_worker._sql.queries.workers import recover_jobs, register_pool
from tests.laboratory.audit import install_audit, read_audit
from tests.laboratory.checker import check
from tests.support.pools import open_pool


def test_a_queue_stays_locked_while_a_job_of_it_is_held_by_a_silent_pool(database, sql):
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
        # Not by closing: nobody would say when the server has noticed.
        in_the_way.run("rollback")
        in_the_way.close()

        # The next one takes both.
        assert len(dead.connection.run(sweep)) == 1
        assert len(heir.claim()) == 1

    report = check(read_audit(database.dsn, database.schema))
    assert report.broken <= {"I7"}, "\n".join(report.lines())
