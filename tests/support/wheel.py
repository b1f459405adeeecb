"""Build the distributions, and install them in environments without the repository."""

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[2]


def build_wheel(folder: Path, source: Path = ROOT) -> Path:
    return build("wheel", folder, source)


def build(kind: str, folder: Path, source: Path = ROOT, **variables: str) -> Path:
    """The wheel or the sdist of what lies there."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", str(folder)]
    run(*command, cwd=source, **variables)
    (built,) = folder.glob("*.whl" if kind == "wheel" else "*.tar.gz")
    return built


def checkout(folder: Path) -> Path:
    """A copy of what git tracks, or would."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    for name in filter(None, run(*command, cwd=ROOT).split("\0")):
        if (ROOT / name).exists():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    return folder


def environment_with_wheel(folder: Path) -> Path:
    """The interpreter of a new environment that has the wheel, and what it depends on."""
    wheel = build_wheel(folder / "dist")
    venv.create(folder / "env", with_pip=False)
    packages = folder / "env/lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}"
    packages /= "site-packages"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(packages)
    # The packages of this environment, without its own link to the repository: a path file that
    # lies beyond a path file is not read.
    (packages / "others.pth").write_text(sysconfig.get_path("purelib"))
    return folder / "env/bin/python"


def interpreter(version: str) -> str | None:
    """The path of that Python, where it is on this machine."""
    found = subprocess.run([ROOT / "tools/python", version], capture_output=True, text=True)
    return found.stdout.strip() if found.returncode == 0 else None


def clean_environment(folder: Path, python: str, *requirements: str) -> Path:
    """The interpreter of a new environment that has these from the index, and nothing else."""
    run("uv", "venv", "-q", "--python", python, str(folder))
    install = ["uv", "pip", "install", "-q", "--python", str(folder)]
    run(*install, *requirements, UV_COMPILE_BYTECODE="0")
    return folder / "bin/python"


def run(*command: str, cwd: Path | None = None, **variables: str) -> str:
    """What a program printed, once it has ended well."""
    env = {**clean_variables(), **variables}
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}{done.stderr}"
    return done.stdout


def clean_variables() -> dict[str, str]:
    """Return the environment variables without those that would add the repository."""
    ours = ("PYTHONPATH", "VIRTUAL_ENV")
    return {name: value for name, value in os.environ.items() if name not in ours}
