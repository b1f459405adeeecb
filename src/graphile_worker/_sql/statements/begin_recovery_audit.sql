-- Like begin_audit, and also return how many named queues the pools $2 have locked.
select
  access.is_granted,
  pg_catalog.getdatabaseencoding() = 'UTF8'
  and pg_catalog.current_setting('client_encoding') = 'UTF8',
  (
    select pg_catalog.count(*)
    from :schema._private_job_queues as job_queues
    where job_queues.locked_by = any ($2::text[])
  ),
  case
    when access.is_granted then pg_catalog.set_config('gwpy.audited', 'on', true)
  end
from :audit_access as access;
