-- Each row is one call that may be made. Who takes it gives it back for later: it is free again
-- after a window. So with 3 rows for a flag, no window of any second has more than 3 calls.
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

-- In place of the service: who called it, and when the call was allowed.
create table calls (
  order_id bigint not null,
  taken_at timestamptz not null,
  worker text not null
);

create table receipts (
  order_id bigint not null
);
