"""SQL: one statement per file, one function per statement."""
