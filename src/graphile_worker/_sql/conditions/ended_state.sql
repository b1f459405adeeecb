-- Whether it succeeded is one of $1.
outcomes.succeeded = any ($1::boolean[])
