-- Return the settings $1 that this server has, and the start of a statement that changes each.
select
  settings.name,
  settings.setting,
  pg_catalog.current_setting(settings.name),
  case
    when settings.context in ('user', 'superuser')
      then pg_catalog.format('alter database %I set', pg_catalog.current_database())
    else 'alter system set'
  end
from pg_catalog.pg_settings as settings
where settings.name = any ($1::text[]);
