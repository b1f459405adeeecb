"""The interleaving ring: the statements that move locks, two or three at a time, in every order.

As PostgreSQL's isolationtester does it: each session takes its steps when the test lets it, and one
that waits for another's lock is seen through `pg_blocking_pids`. Nothing depends on the clock.
"""
