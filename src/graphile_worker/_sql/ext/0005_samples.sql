-- Samples of the metrics of the queue. The transaction that locks a row takes the next sample, and
-- all other processes read it. Unlogged, because a crash may lose samples.
create unlogged table if not exists :ext_schema.samples (
  name text constraint samples_pkey primary key,
  taken_at timestamptz not null,
  next_at timestamptz not null,
  duration float8 not null,
  body json not null
);

insert into :ext_schema.migrations (id, name)
values (5, '0005_samples')
on conflict do nothing;
