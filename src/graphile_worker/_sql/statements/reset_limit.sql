-- Let the values of the app be in force for limit $1. Returns whether a person had set other values.
with changed as (
  update :ext_schema.limits as limits
  set amount = limits.app_amount,
      period = limits.app_period,
      burst = limits.app_burst,
      set_by = null,
      set_at = null
  where limits.name = $1::text
    and limits.set_at is not null
  returning limits.name
)
select exists (select from changed);
