"""Where the jobs of a worker come from: fetched one by one, ahead by time, or ahead by count."""
