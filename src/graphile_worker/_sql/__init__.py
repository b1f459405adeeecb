"""What we ask the database: one statement per file, one function per statement."""
