"""How fast we are, beside others in the same run: `python -m benchmarks <name>`.

Each benchmark starts its own PostgreSQL cluster, measures ours and the others in turn, and says
medians and ratios. `benchmarks/setup` installs the others that come from PyPI, and `tools/rust`
builds the Rust worker.
"""
