-- Does this transaction accept statements, or did one fail in it? Returns 1.
select $1::int;
