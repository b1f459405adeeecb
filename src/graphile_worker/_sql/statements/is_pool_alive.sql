-- Is pool $1 among those that live?
select exists (select from :ext_schema.pools where id = $1::text and swept_at is null);
