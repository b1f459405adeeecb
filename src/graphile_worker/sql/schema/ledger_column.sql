-- An installer may stop between making the ledger and giving it this column; safe to repeat.
alter table :schema.migrations
add column if not exists breaking boolean not null default false;
