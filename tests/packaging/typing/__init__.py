"""What users may write, and what type checkers must tell them not to."""
