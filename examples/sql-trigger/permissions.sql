-- For an application whose role may write its tables but must not access the queue.
-- By default a trigger function runs with the permissions of the role that changes the row. Run
-- these with the permissions of their owner, and look up names only in pg_catalog.
alter function welcome_user() security definer set search_path = pg_catalog, pg_temp;
alter function enqueue_change() security definer set search_path = pg_catalog, pg_temp;
alter function index_document() security definer set search_path = pg_catalog, pg_temp;

-- A role that may execute them could attach them to its own table, with any task as argument.
revoke execute on function welcome_user(), enqueue_change(), index_document() from public;
