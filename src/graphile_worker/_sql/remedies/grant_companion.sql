grant usage on schema :ext_schema to :"role";
grant select, insert, update, delete on :ext_schema.pools, :ext_schema.recoveries to :"role";
grant select on :ext_schema.migrations to :"role";
grant select, update on :ext_schema.turns to :"role";
grant select, insert, update on :ext_schema.samples to :"role";
