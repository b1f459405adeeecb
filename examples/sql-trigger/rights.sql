-- For an application whose role may write its tables and must not touch the queue.
-- A trigger function runs with the rights of whoever changes the row. These run with those of
-- their owner instead, and look names up nowhere but where we say.
alter function welcome_user() security definer set search_path = pg_catalog, pg_temp;
alter function enqueue_change() security definer set search_path = pg_catalog, pg_temp;
alter function index_document() security definer set search_path = pg_catalog, pg_temp;

-- Whoever may execute them may put them on a table of his own, with any task as argument.
revoke execute on function welcome_user(), enqueue_change(), index_document() from public;
