-- It has one of the flags $1.
jobs.flags ?| $1::text[]
