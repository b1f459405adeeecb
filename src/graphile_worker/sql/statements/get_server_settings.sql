-- What the server says of its settings $1, those that it has, and how to begin to change each.
select
  settings.name,
  settings.setting,
  current_setting(settings.name),
  case
    when settings.context in ('user', 'superuser')
      then format('alter database %I set', current_database())
    else 'alter system set'
  end
from pg_settings as settings
where settings.name = any ($1::text[]);
