"""`graphile-worker top`: a queue on one screen, again and again; it changes nothing."""
