drop schema :ext_schema cascade;
