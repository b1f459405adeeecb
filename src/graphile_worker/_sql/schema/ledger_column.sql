-- The last column of a ledger whose installer stopped before it; safe to repeat.
alter table :schema.migrations
add column if not exists breaking boolean not null default false;
