-- Its key is like one of $1.
jobs.key like any ($1::text[])
