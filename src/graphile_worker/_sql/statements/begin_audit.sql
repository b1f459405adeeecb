-- Return whether this role may add entries to the table audit of schema $1, and whether the database
-- and the connection can carry every character. If it may, the optional trigger of
-- deploy/sql/audit-trigger.sql ignores the changes of this transaction until the entry is added.
select
  access.is_granted,
  pg_catalog.getdatabaseencoding() = 'UTF8'
  and pg_catalog.current_setting('client_encoding') = 'UTF8',
  case
    when access.is_granted then pg_catalog.set_config('gwpy.audited', 'on', true)
  end
from :audit_access as access;
