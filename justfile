# List the commands
default:
    @just --list

# Install everything, once
setup:
    tools/setup && tools/pgbouncer && tools/faketime && tools/tmux
    python=$(tools/python newest) && uv venv --allow-existing --python "$python"
    uv pip install --require-hashes -r requirements-dev.txt
    uv pip install --no-deps -e .
    .venv/bin/pre-commit install

# Everything a change must pass, in a few minutes
check: check-style (test "tests/unit" "tests/db")

# Format, lint, layers, types, spelling
check-style:
    .venv/bin/ruff format --check .
    .venv/bin/ruff check .
    .venv/bin/lint-imports
    .venv/bin/mypy
    .venv/bin/typos

# Lock files name packages and hashes, never where they came from
check-locks:
    git ls-files --error-unmatch requirements-dev.txt tools/test-tools/package-lock.json > /dev/null
    ! git grep -lE 'https?://' -- 'requirements*.txt' '*.lock'
    ! git grep -n '"resolved"' -- '*package-lock.json'

# Put the code in order
fix:
    .venv/bin/ruff check --fix .
    .venv/bin/ruff format .

# Any tests: just test tests/db -k get_job --pg 15
test *args:
    .venv/bin/pytest {{ args }}

# Every Python and every PostgreSQL that is to be had
test-all *args:
    .venv/bin/nox {{ args }}

# What takes too long for every check: more rounds, larger payloads
test-long *args:
    .venv/bin/pytest --long -m long {{ args }}

# Random faults on real workers, judged: just chaos long --seed 7 --report FILE
chaos *args:
    .venv/bin/python -m tests.chaos.laboratory {{ args }}

# Measure: just bench throughput --pg 15; beside PgQueuer and Procrastinate after benchmarks/setup
bench *args:
    .venv/bin/python -m benchmarks {{ args }}

# Which features have a test, and which have none
features *args:
    .venv/bin/python -m tools.features {{ args }}

# Write docs/reference/schema.sql anew
dump-schema:
    .venv/bin/python -m tools.dump_schema

# Lock the development tools
lock:
    uv pip compile --universal --python-version 3.11 --group dev --generate-hashes \
      --no-emit-index-url --no-header pyproject.toml -o requirements-dev.txt
