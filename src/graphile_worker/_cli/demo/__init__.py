"""The demo: tasks, a producer, and workers in a temporary schema."""
