-- Return up to $5 entries of the audit, the newest first: of actor or role $1, of action $2, about
-- job $3, with an id below $4, and among the $6 newest. Null selects all.
select
  audit.id,
  extract(epoch from audit.at)::text,
  audit.actor,
  audit.role,
  audit.action,
  audit.filter,
  audit.job_ids,
  audit.count,
  audit.note
from :ext_schema.audit as audit
where ($1::text is null or audit.actor = $1::text or audit.role = $1::text)
  and ($2::text is null or audit.action = $2::text)
  and ($3::bigint is null or $3::bigint = any (audit.job_ids))
  and ($4::bigint is null or audit.id < $4::bigint)
  -- A comparison without "or", so that the primary key ends the search.
  and audit.id > coalesce(
    (select pg_catalog.max(newest.id) from :ext_schema.audit as newest) - $6::bigint,
    0::bigint
  )
order by audit.id desc
limit $5::int;
