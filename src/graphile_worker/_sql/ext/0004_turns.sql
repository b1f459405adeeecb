-- Work of one worker at a time: the transaction that locks a row has the turn. Only roles that may
-- update this table can take it; any role that may connect can hold an advisory lock.
create table if not exists :ext_schema.turns (
  name text constraint turns_pkey primary key
);

insert into :ext_schema.turns (name)
values ('sweep')
on conflict do nothing;

insert into :ext_schema.migrations (id, name)
values (4, '0004_turns')
on conflict do nothing;
