"""Find tasks and crontabs in a folder of files, or in the app of a module."""
