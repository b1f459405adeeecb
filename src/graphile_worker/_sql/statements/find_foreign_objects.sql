-- What of companion schema $1, beside schema $2, belongs to a role that may not own it, and that role.
:foreign_objects
order by 1;
