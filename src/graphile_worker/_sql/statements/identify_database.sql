-- Return the identifier of the server's data directory, and the name of the database.
select
  control.system_identifier::text,
  pg_catalog.current_database()::text
from pg_catalog.pg_control_system() as control;
