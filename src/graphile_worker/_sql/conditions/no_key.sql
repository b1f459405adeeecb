-- It has no key.
jobs.key is null
