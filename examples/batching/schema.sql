create table sensors (
  name text primary key
);

-- The primary key makes storing a reading idempotent.
create table readings (
  sensor text not null references sensors,
  at timestamptz not null,
  value double precision not null,
  primary key (sensor, at)
);

insert into sensors values ('kitchen'), ('cellar');
