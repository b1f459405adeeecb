"""The settings of the command: flags, environment variables, config file and app."""
