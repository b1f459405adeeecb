"""The fault laboratory: the database records its own history, and a checker judges it."""
