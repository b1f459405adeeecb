-- Work that one worker at a time may do: the transaction that locks the row does it. Only roles that
-- may update this table can lock a row, whereas any role that may connect can take an advisory lock.
create table if not exists :ext_schema.turns (
  name text constraint turns_pkey primary key
);

insert into :ext_schema.turns (name)
values ('sweep')
on conflict do nothing;

insert into :ext_schema.migrations (id, name)
values (4, '0004_turns')
on conflict do nothing;
