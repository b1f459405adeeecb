"""Fetch the scripts that the dashboard serves, or check that they are what was published.

`python -m tools.vendor` fetches the packages of VENDOR.toml from npm, writes their files and
records the hashes. `python -m tools.vendor --check` compares both, without a network.
"""

import hashlib
import re
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[1] / "src/graphile_worker/contrib/dashboard/static/vendor"
MANIFEST = FOLDER / "VENDOR.toml"

# Browsers resolve relative addresses only: the names of packages become files of this folder.
IMPORTS = {
    "preact": "./preact.js",
    "preact/hooks": "./hooks.js",
    "@preact/signals-core": "./signals-core.js",
}

# This file defines a global variable; as a module it must export it.
EXPORTS = {"uplot.js": "\nexport default uPlot;\n"}


def main(arguments: list[str]) -> int:
    if arguments == ["--check"]:
        findings = list(find_differences())
        print("\n".join(findings) or f"{FOLDER.name}: as published")
        return 1 if findings else 0
    fetch()
    return 0


def read_manifest() -> list[dict[str, str]]:
    """Return the entries of VENDOR.toml."""
    scripts: list[dict[str, str]] = tomllib.loads(MANIFEST.read_text("utf-8"))["script"]
    return scripts


def find_differences() -> Iterator[str]:
    """Find files that are missing, changed or not in VENDOR.toml."""
    scripts = read_manifest()
    for script in scripts:
        path = FOLDER / script["file"]
        if not path.exists():
            yield f"{path.name} is missing"
        elif _hash(path.read_bytes()) != script.get("sha256"):
            yield f"{path.name} differs from {script['package']} {script['version']}"
    named = {MANIFEST.name, "LICENSES.txt", *(script["file"] for script in scripts)}
    yield from (
        f"{path.name} is not in {MANIFEST.name}"
        for path in sorted(FOLDER.iterdir())
        if path.name not in named
    )


def fetch() -> None:
    """Fetch all packages, write their files, their licenses and the hashes."""
    text = MANIFEST.read_text("utf-8")
    licenses: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as folder:
        for script in read_manifest():
            package = _fetch_package(script, Path(folder))
            content = build_file(script, (package / script["source"]).read_bytes())
            (FOLDER / script["file"]).write_bytes(content)
            text = _record_hash(text, script["file"], _hash(content))
            licenses[f"{script['package']} {script['version']}"] = _read_license(package)
    MANIFEST.write_text(text, encoding="utf-8")
    notices = (f"{name}\n\n{license.strip()}\n" for name, license in licenses.items())
    (FOLDER / "LICENSES.txt").write_text("\n\n".join(notices), encoding="utf-8")


def build_file(script: Mapping[str, str], published: bytes) -> bytes:
    """Return the file to serve: as published, without its source map and with relative imports."""
    text = published.decode()
    text = re.sub(r"\n?//# sourceMappingURL=\S+\s*$", "\n", text)
    for name, path in IMPORTS.items():
        text = re.sub(rf'(\bfrom|\bimport)\s*"{re.escape(name)}"', rf'\1"{path}"', text)
    return (text + EXPORTS.get(script["file"], "")).encode()


def _fetch_package(script: Mapping[str, str], folder: Path) -> Path:
    target = folder / f"{script['package'].replace('/', '-')}-{script['version']}"
    if not target.exists():
        command = ["npm", "pack", "--silent", f"{script['package']}@{script['version']}"]
        done = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True)
        with tarfile.open(folder / done.stdout.strip()) as archive:
            archive.extractall(target, filter="data")
    return target / "package"


def _read_license(package: Path) -> str:
    (path,) = (each for each in package.iterdir() if each.name.upper().startswith("LICENSE"))
    return path.read_text("utf-8")


def _record_hash(manifest: str, file: str, digest: str) -> str:
    pattern = rf'(file = "{re.escape(file)}"\n)(?:sha256 = "[0-9a-f]*"\n)?'
    return re.sub(pattern, rf'\1sha256 = "{digest}"\n', manifest)


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
