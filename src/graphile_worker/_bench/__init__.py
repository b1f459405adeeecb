"""The benchmarks of `graphile-worker bench`, in a schema that they drop at the end."""
