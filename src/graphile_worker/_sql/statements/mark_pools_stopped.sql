-- Record that pools $1 have stopped, while a claim on the way may still lock jobs. Their rows stay
-- like those of dead pools, so that other workers release these locks. `stopped` hides them from
-- people.
update :ext_schema.pools as pools
set started_jobs = '{}',
    details = '{"runtime": "python", "stopped": true}'
where pools.id = any ($1::text[]);
