create table if not exists products (
  name text primary key,
  stock int not null check (stock >= 0)
);

create table if not exists orders (
  id bigint generated always as identity primary key,
  email text not null,
  product text not null references products,
  ordered_at timestamptz not null default now(),
  receipt_sent_at timestamptz
);

insert into products values ('tea', 2) on conflict do nothing;
