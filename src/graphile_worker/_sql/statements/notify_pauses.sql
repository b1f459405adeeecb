-- Notify Python workers that a task was paused or resumed, with payload $1.
select pg_catalog.pg_notify('gwpy:pauses', $1::text);
