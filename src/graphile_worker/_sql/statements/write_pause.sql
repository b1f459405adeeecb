-- Describe the pause of $2, a queue or task by $1: paused by $3, or this role if that is null, for
-- reason $4, for $5 microseconds or without an end. Returns the row. A second pause replaces the
-- first one, which began earlier. One that has ended does not count.
insert into :ext_schema.pauses as pauses (kind, name, paused_by, reason, until)
values (
  $1::text,
  $2::text,
  coalesce($3::text, session_user),
  $4::text,
  pg_catalog.now() + $5::bigint::float8 * interval '1 microsecond'
)
on conflict (kind, name) do update
set paused_by = excluded.paused_by,
    reason = excluded.reason,
    until = excluded.until,
    since = case
      when pauses.until <= pg_catalog.now() or $6::boolean then excluded.since
      else pauses.since
    end
returning
  pauses.kind,
  pauses.name,
  pauses.paused_by,
  pauses.reason,
  extract(epoch from pauses.since)::text,
  extract(epoch from pauses.until)::text;
