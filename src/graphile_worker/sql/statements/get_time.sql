-- What time it is.
select extract(epoch from clock_timestamp())::text;
