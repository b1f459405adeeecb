-- The limits of tasks. The values in force are those of the app, or those that a person set.
create table if not exists :ext_schema.limits (
  name text constraint limits_pkey primary key,
  kind text not null constraint limits_kind_check check (kind in ('concurrency', 'rate')),
  -- Slots, or starts in each period. A burst is the number of starts that may follow each other.
  amount integer not null,
  period interval,
  burst integer,
  -- What the app defines.
  app_amount integer not null,
  app_period interval,
  app_burst integer,
  -- Null while the values of the app are in force.
  set_by text,
  set_at timestamptz,
  -- A pool that has no slot of a limit and waits for one.
  wanted_by text,
  wanted_at timestamptz,
  constraint limits_values_check check (
    amount > 0
    and app_amount > 0
    and (
      kind <> 'rate'
      or (
        period > interval '0'
        and burst > 0
        and app_period > interval '0'
        and app_burst > 0
      ) is true
    )
  )
);

-- The slots of concurrency limits, one row each. A pool rents slots, and runs as many jobs of the
-- limit at the same time. The number of the rental protects a slot that was rented again from the
-- return of an earlier rental.
create table if not exists :ext_schema.slots (
  limit_name text not null
    constraint slots_limit_name_fkey references :ext_schema.limits (name) on delete cascade,
  slot integer not null,
  pool_id text,
  rental bigint not null default 0,
  rented_at timestamptz,
  constraint slots_pkey primary key (limit_name, slot)
) with (fillfactor = 20);

-- When the next start of each rate limit is due if starts are at even intervals: the theoretical
-- arrival time of the generic cell rate algorithm.
create table if not exists :ext_schema.rates (
  limit_name text
    constraint rates_pkey primary key
    constraint rates_limit_name_fkey references :ext_schema.limits (name) on delete cascade,
  due_at timestamptz not null default '-infinity'
) with (fillfactor = 20);

insert into :ext_schema.migrations (id, name)
values (8, '0008_limits')
on conflict do nothing;
