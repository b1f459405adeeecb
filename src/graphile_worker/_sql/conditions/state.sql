-- Its state is one of $2, where pools $1 are dead.
:job_state = any ($2::text[])
