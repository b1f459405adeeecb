-- Run once, before the first migration, as a role that can create roles and schemas.
create role queue_owner nologin;
create role queue_migrator login;
create role queue_worker login;
create role queue_reader login;
create role queue_cleaner login;
create role queue_enqueuer login;
create role queue_api nologin;

-- Objects that the migrator creates belong to the owner.
grant queue_owner to queue_migrator;
alter role queue_migrator set role to queue_owner;

-- Created first, so that no other role needs the privilege to create schemas. Existing schemas
-- keep their owner: hand-over.sql changes it.
grant queue_owner, queue_api to current_user;
create schema if not exists graphile_worker authorization queue_owner;
create schema if not exists graphile_worker_ext authorization queue_owner;
create schema graphile_worker_api authorization queue_api;

-- By default every role can call new functions. This also covers later migrations.
alter default privileges for role queue_owner revoke execute on functions from public;
alter default privileges for role queue_api revoke execute on functions from public;

-- Affects the whole database; the default since PostgreSQL 15. A role that can create functions in
-- public can shadow built-in ones, in all SQL that does not name schemas.
revoke create on schema public from public;
