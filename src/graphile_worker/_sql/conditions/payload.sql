-- The value at path $1 of its payload is one of the texts $2, and a string unless it is one of $3
-- as well. With $4, it may also be null. A payload that matches none of $5 cannot contain the value,
-- which is cheap to check first. json may contain characters that PostgreSQL cannot store as text:
-- NUL, and half of a surrogate pair.
case
  when jobs.payload::text not like all ($5::text[]) then false
  when jobs.payload::text like '%\\u%'
    and pg_catalog.regexp_replace(jobs.payload::text, '\\\\|\\ud[89ab]..\\ud[c-f]..', '', 'gi')
      ~* '\\u(0000|d[89a-f])'
    then false
  when (jobs.payload #>> $1::text[]) = any ($2::text[]) then
    pg_catalog.json_typeof(jobs.payload #> $1::text[]) = 'string'
    or (jobs.payload #>> $1::text[]) = any ($3::text[])
  when $4::boolean then pg_catalog.json_typeof(jobs.payload #> $1::text[]) = 'null'
  else false
end
