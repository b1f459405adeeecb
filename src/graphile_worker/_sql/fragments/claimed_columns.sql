-- job_columns of a job that was just claimed. Formatting a time costs as much as the rest of the
-- row, so a time equal to created_at is left out, and one that all rows share is formatted once.
--
-- A payload of more than $8 bytes is not sent: # and its size replace it, and no JSON starts with
-- #. The size of the stored form decides for most payloads, without reading them a second time:
-- compressed, it has at least 1/256 of the bytes.
case
  when pg_catalog.pg_column_size(jobs.payload) <= case
    when pg_catalog.pg_column_compression(jobs.payload) is null then $8::int
    else $8::int / 256
  end then jobs.payload::text
  when pg_catalog.octet_length(jobs.payload::text) <= $8::int then jobs.payload::text
  else '#'::text || pg_catalog.octet_length(jobs.payload::text)::text
end,
jobs.priority,
case when jobs.run_at <> jobs.created_at then extract(epoch from jobs.run_at)::text end,
jobs.attempts,
jobs.max_attempts,
jobs.last_error,
extract(epoch from jobs.created_at)::text,
case when jobs.updated_at <> jobs.created_at then extract(epoch from jobs.updated_at)::text end,
jobs.key,
(select extract(epoch from claim_time)::text from params),
$1::text,
jobs.revision,
jobs.flags::text
