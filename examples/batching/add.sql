-- The same from SQL: an array, the key, and the mode that keeps the run_at of the first item.
select json_array_length(payload) as gathered
from graphile_worker.add_job(
  identifier => 'gather',
  payload => json_build_array(
    json_build_object('sensor', 'cellar', 'at', now(), 'value', 9.2)
  ),
  job_key => 'gather:readings',
  job_key_mode => 'preserve_run_at',
  run_at => now() + interval '2 seconds'
);
