"""The built wheel in an environment of its own: what a user gets, without the repository."""

import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[2]


def build_wheel(folder: Path) -> Path:
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    return wheel


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
