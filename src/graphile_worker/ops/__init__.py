"""Search, change, explain and diagnose a queue, without output to a terminal."""
