-- The shortest time between a call and the third call after it must be at least a second.
select min(gap) as shortest, min(gap) >= interval '1 second' as is_held
from (
  select lead(taken_at, 3) over (order by taken_at) - taken_at as gap
  from calls
) as gaps;
