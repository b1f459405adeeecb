"""The pages of the admin: jobs, workers and outcomes.

They show what `graphile_worker.ops` finds, so that the admin and the command answer alike.
"""
