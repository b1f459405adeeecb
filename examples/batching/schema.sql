create table sensors (
  name text primary key
);

-- A reading is known by its sensor and its time: to store it twice changes nothing.
create table readings (
  sensor text not null references sensors,
  at timestamptz not null,
  value double precision not null,
  primary key (sensor, at)
);

insert into sensors values ('kitchen'), ('cellar');
