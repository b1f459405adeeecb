"""Sources of jobs: fetch jobs one by one, ahead by time, or ahead by count."""
