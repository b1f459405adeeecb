-- Return the objects of companion schema $1, beside schema $2, whose owner must not own them, with
-- that owner.
:foreign_objects
order by 1;
