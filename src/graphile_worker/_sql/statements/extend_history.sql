-- Keep outcomes for at least $1 microseconds. Another process may have set a longer time meanwhile.
update :ext_schema.history as history
set keep = $1::bigint::float8 * interval '1 microsecond'
where history.name = 'outcomes'
  and (history.keep is null or history.keep < $1::bigint::float8 * interval '1 microsecond');
