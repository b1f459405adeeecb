-- Drop both schemas with all their objects.
drop schema if exists :schema, :ext_schema cascade;
