-- Return the level of a shared schema whose ledger has no column for breaking levels.
select pg_catalog.max(id) from :schema.migrations;
