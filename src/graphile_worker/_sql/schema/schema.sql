-- The schema, shared by all implementations.
create schema if not exists :schema;
