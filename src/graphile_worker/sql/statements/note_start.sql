-- Pool $2 is about to run job $1, which a silent pool left behind, at attempt $3.
insert into :ext_schema.recoveries (job_id, count, started_by, started_attempt)
values ($1::bigint, 0, $2::text, $3::int)
on conflict (job_id) do update
set started_by = excluded.started_by,
    started_attempt = excluded.started_attempt;
