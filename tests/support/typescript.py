"""Type-check TypeScript that uses Graphile Worker for Node."""

import subprocess
from pathlib import Path

from tests.support.tools import MODULES, typescript_compiler

OPTIONS = (
    *("--strict", "--noEmit", "--pretty", "false", "--skipLibCheck", "--target", "es2022"),
    *("--module", "nodenext", "--allowImportingTsExtensions", "--erasableSyntaxOnly"),
    *("--verbatimModuleSyntax", "--types", "node"),
)


def install_packages(folder: Path) -> None:
    """As after `npm install`."""
    modules = folder / "node_modules"
    modules.mkdir(exist_ok=True)
    (modules / "graphile-worker").symlink_to(MODULES / "gw018")
    (modules / "@types").symlink_to(MODULES / "@types")


def find_type_errors(folder: Path) -> list[str]:
    """Compile the TypeScript files of a folder, and return the lines of the compiler."""
    files = sorted(str(each.name) for each in folder.glob("*.ts"))
    line: list[str] = [str(typescript_compiler()), *OPTIONS, *files]
    done = subprocess.run(line, cwd=folder, capture_output=True, text=True, check=False)
    assert (done.returncode == 0) == (done.stdout == ""), done.stdout + done.stderr
    return done.stdout.splitlines()
