"""Programs that run in processes of their own, one set for each queue that is measured.

What they are to do stands in the environment: BENCH_DSN, BENCH_JOBS, BENCH_CONCURRENCY and
BENCH_BATCH. What they have to say is one JSON object a line on standard output.
"""
