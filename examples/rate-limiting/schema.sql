-- Each row is a token for one call. It is free again one window after it was taken, so with 3 rows
-- for a flag no window has more than 3 calls.
create table tokens (
  id bigint generated always as identity primary key,
  flag text not null,
  per interval not null,
  free_at timestamptz not null default '-infinity'
);

create index on tokens (flag, free_at);

-- At most 3 calls in a second.
insert into tokens (flag, per)
select 'api:stripe', interval '1 second'
from generate_series(1, 3);

-- Stands in for the service: records each call and when it was allowed.
create table calls (
  order_id bigint not null,
  taken_at timestamptz not null,
  worker text not null
);

create table receipts (
  order_id bigint not null
);
