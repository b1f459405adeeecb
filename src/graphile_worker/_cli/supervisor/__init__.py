"""Worker processes under one parent."""
