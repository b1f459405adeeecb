-- Create the row of the sample $1, without content. A crash empties the table.
insert into :ext_schema.samples (name, taken_at, next_at, duration, body)
values ($1::text, 'epoch', 'epoch', 0, '[]')
on conflict do nothing;
