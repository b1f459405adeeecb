"""What `graphile-worker bench` measures, in a schema that it drops afterwards."""
