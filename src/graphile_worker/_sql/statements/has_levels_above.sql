-- Return whether the shared schema has levels above $1.
select exists (select from :schema.migrations where id > $1::int);
