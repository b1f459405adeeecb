-- Once, before the first migration, by somebody who may create roles and schemas.
create role queue_owner nologin;
create role queue_migrator login;
create role queue_worker login;
create role queue_reader login;
create role queue_cleaner login;
create role queue_enqueuer login;
create role queue_api nologin;

-- What the migrator makes belongs to the owner.
grant queue_owner to queue_migrator;
alter role queue_migrator set role to queue_owner;

-- Made beforehand, so that nobody else needs the right to create schemas. Those that are there
-- keep their owner: hand-over.sql.
grant queue_owner, queue_api to current_user;
create schema if not exists graphile_worker authorization queue_owner;
create schema if not exists graphile_worker_ext authorization queue_owner;
create schema graphile_worker_api authorization queue_api;

-- Functions are for everybody unless this is said; it holds for those of later migrations, too.
alter default privileges for role queue_owner revoke execute on functions from public;
alter default privileges for role queue_api revoke execute on functions from public;

-- For the whole database, and the default for those made since PostgreSQL 15. A role that may create
-- functions in public can put them in the way of built-in ones, in all SQL that names no schemas.
revoke create on schema public from public;
