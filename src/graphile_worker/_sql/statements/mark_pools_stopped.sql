-- Pools $1 have ended, but a fetch of theirs may still lock jobs. Their rows stay as those of silent
-- pools do, so that others release what is locked; `stopped` hides them from people.
update :ext_schema.pools as pools
set started_jobs = '{}',
    details = '{"runtime": "python", "stopped": true}'
where pools.id = any ($1::text[]);
