"""How we ask: connections of ours and of the caller's, retries, migrations."""
