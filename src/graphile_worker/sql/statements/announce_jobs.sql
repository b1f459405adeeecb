-- Tell whoever listens that $1 jobs can be taken.
select pg_notify('jobs:insert', json_build_object('r', random(), 'count', $1::int)::text);
