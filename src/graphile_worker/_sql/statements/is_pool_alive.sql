-- Return whether pool $1 is registered, and not rescued.
select exists (select from :ext_schema.pools where id = $1::text and swept_at is null);
