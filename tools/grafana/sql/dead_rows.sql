select n_dead_tup as rows
from pg_stat_all_tables
where relid = '"${schema}"._private_jobs'::regclass
