"""One function per statement: its arguments, and how its rows are read."""
