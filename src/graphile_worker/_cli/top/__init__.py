"""`graphile-worker top`: a live view of a queue that changes nothing."""
