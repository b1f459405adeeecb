-- Its key is one of $1.
jobs.key = any ($1::text[])
