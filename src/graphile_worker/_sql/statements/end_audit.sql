-- Let the optional trigger record changes again, after a change without an entry: set its setting to
-- $1, an empty text.
select pg_catalog.set_config('gwpy.audited', $1::text, true);
