-- Return 1, or fail if a statement of this transaction failed before.
select $1::int;
