"""How fast is it here? What `graphile-worker bench` measures, in a schema of its own."""
