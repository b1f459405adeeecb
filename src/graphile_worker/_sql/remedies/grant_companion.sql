grant usage on schema :ext_schema to :"role";
grant select, insert, update, delete on :ext_schema.pools, :ext_schema.recoveries to :"role";
grant select on :ext_schema.migrations to :"role";
grant select, update on :ext_schema.turns to :"role";
grant select, insert, update on :ext_schema.samples to :"role";
grant select, update on :ext_schema.history to :"role";
grant select, insert on :ext_schema.outcomes, :ext_schema.attempts to :"role";
grant select, insert, update, delete on :ext_schema.progress to :"role";
grant select, insert, update, delete on :ext_schema.pauses to :"role";
grant select, insert, update on :ext_schema.limits, :ext_schema.slots, :ext_schema.rates to :"role";
grant select, insert, update, delete on :ext_schema.unique_keys to :"role";
grant execute
  on function :ext_schema.rotate_history, :ext_schema.add_unique_job, :ext_schema.add_unique_jobs
  to :"role";
grant truncate
  on :ext_schema.outcomes_0, :ext_schema.outcomes_1, :ext_schema.outcomes_2,
    :ext_schema.outcomes_3, :ext_schema.outcomes_4, :ext_schema.outcomes_5,
    :ext_schema.outcomes_6, :ext_schema.outcomes_7, :ext_schema.outcomes_8,
    :ext_schema.attempts_0, :ext_schema.attempts_1, :ext_schema.attempts_2,
    :ext_schema.attempts_3, :ext_schema.attempts_4, :ext_schema.attempts_5,
    :ext_schema.attempts_6, :ext_schema.attempts_7, :ext_schema.attempts_8
  to :"role";
