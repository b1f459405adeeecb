select pg_catalog.pg_total_relation_size('"${schema}"._private_jobs'::regclass) as bytes
