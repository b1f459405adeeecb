"""Write the packages of a plain install as a CycloneDX SBOM: `python -m tools.sbom FILE`."""

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

ROOT = Path(__file__).parent.parent
VERSION = SchemaVersion.V1_6


def main() -> None:
    target = Path(sys.argv[1])
    with tempfile.TemporaryDirectory() as folder:
        environment = _environment_with_wheel(Path(folder))
        bill = _bill_of(environment)
    text = json.dumps(bill, indent=2, sort_keys=True) + "\n"
    if error := JsonStrictValidator(VERSION).validate_str(text):
        sys.exit(f"the SBOM does not match the CycloneDX schema: {error}")
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text, encoding="utf-8")
    print(f"{target}: {len(bill['components'])} dependencies")


def _environment_with_wheel(folder: Path) -> Path:
    _run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder))
    (wheel,) = folder.glob("*.whl")
    _run("uv", "venv", "-q", "--python", sys.executable, str(folder / "env"))
    _run("uv", "pip", "install", "-q", "--python", str(folder / "env"), str(wheel))
    return folder / "env"


def _bill_of(environment: Path) -> dict[str, Any]:
    cyclonedx = Path(sys.executable).parent / "cyclonedx-py"
    options = ["--pyproject", "pyproject.toml", "--mc-type", "library", "--no-validate"]
    options += ["--output-reproducible", "--spec-version", VERSION.to_version()]
    output = _run(str(cyclonedx), "environment", *options, str(environment / "bin/python"))
    bill: dict[str, Any] = json.loads(output)
    package = bill["metadata"]["component"]
    package["purl"] = f"pkg:pypi/{package['name']}@{package['version']}"
    # The purl identifies a package. Addresses of web sites change often.
    _remove_key("externalReferences", bill)
    return bill


def _remove_key(key: str, value: object) -> None:
    if isinstance(value, dict):
        value.pop(key, None)
        value = list(value.values())
    if isinstance(value, list):
        for each in value:
            _remove_key(key, each)


def _run(*command: str) -> str:
    done = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
    return done.stdout


if __name__ == "__main__":
    main()
