"""Builds an image without an engine: each stage is a layer over this machine, never seen outside.

The steps of the Dockerfile run as they are written, at the paths that they name. What stands for
the base image is this machine, with a `python` on its path.
"""

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

CONTINUED = re.compile(r"\\\n\s*")
# The variables of this user with which pip finds packages.
HANDED_ON = re.compile(r"^(PIP_|SSL_|HTTPS?_PROXY$|HOME$)")


@dataclass
class Stage:
    """A layer over the root of this machine, and the output of its instructions."""

    folder: Path
    base: str
    variables: dict[str, str] = field(default_factory=dict)
    workdir: str = "/"
    user: str = "0"
    entrypoint: list[str] = field(default_factory=list)

    @property
    def layer(self) -> Path:
        """Where everything lies that its steps wrote."""
        return self.folder / "layer"

    def inside(self, command: list[str], mounts: dict[Path, str] | None = None) -> list[str]:
        """Return a command that runs this one in the stage, with its own mounts.

        With something mounted there, the rest can only be read.
        """
        root = self.folder / "root"
        layers = f"lowerdir=/,upperdir={self.layer},workdir={self.folder / 'work'}"
        script = [f"mount -t overlay overlay -o {layers} {root}"]
        script += [f"mount -t proc proc {root}/proc", f"mount --rbind /dev {root}/dev"]
        for source, target in (mounts or {}).items():
            script += [f"mount --bind -o ro {source} {root}{target}"]
        if mounts is not None:
            script += [f"mount -o remount,ro {root}"]
        variables = [f"{name}={value}" for name, value in self.variables.items()]
        ids = f"--userspec={self.user}:{self.user}"
        there = ["env", "-i", "-C", self.workdir, *self._inherited(), *variables, *command]
        script += [shlex.join(["exec", "chroot", ids, str(root), *there])]
        return ["sh", "-ec", "\n".join(script)]

    def run(self, command: str) -> None:
        namespace = ["unshare", "--mount", "--pid", "--fork", "--kill-child"]
        said = subprocess.run(
            [*namespace, *self.inside(["sh", "-ec", command])], capture_output=True, text=True
        )
        assert said.returncode == 0, f"RUN {command}\n{said.stdout}{said.stderr}"

    def _inherited(self) -> list[str]:
        if self.user != "0":
            return []
        return [f"{name}={value}" for name, value in os.environ.items() if HANDED_ON.match(name)]


def can_be_built(folder: Path) -> bool:
    """Return whether this user may mount a layer over this machine."""
    stage = _stage(folder, "", "")
    command = ["unshare", "--mount", *stage.inside(["true"])]
    return subprocess.run(command, capture_output=True).returncode == 0


def instructions(file: Path) -> Iterator[tuple[str, str]]:
    """The name and the rest of each instruction."""
    lines = [line for line in file.read_text().splitlines(keepends=True) if line[:1] != "#"]
    for line in CONTINUED.sub(" ", "".join(lines)).splitlines():
        if line.strip():
            name, _, rest = line.strip().partition(" ")
            yield name, rest.strip()


def built(file: Path, context: Path, folder: Path, python: str) -> Stage:
    """The last stage of the Dockerfile, once all of its steps have run."""
    stages: dict[str, Stage] = {}
    arguments: dict[str, str] = {}
    stage = Stage(folder, "")
    for name, rest in instructions(file):
        match name:
            case "ARG":
                key, _, text = rest.partition("=")
                arguments[key] = text
            case "FROM":
                base, _, called = _filled(rest, arguments).partition(" AS ")
                stage = _begun(folder / f"stage-{len(stages)}", base, python)
                stages[called] = stage
            case "WORKDIR":
                stage.workdir = rest
                (stage.layer / rest.lstrip("/")).mkdir(parents=True, exist_ok=True)
            case "COPY":
                _copy(rest, stage, stages, context)
            case "RUN":
                stage.run(rest)
            case "ENV":
                pairs = (word.split("=", 1) for word in shlex.split(rest))
                stage.variables |= {key: _filled(text, stage.variables) for key, text in pairs}
            case "USER":
                stage.user = rest
            case "ENTRYPOINT":
                stage.entrypoint = shlex.split(rest.strip("[]").replace(",", " "))
            case _:
                raise AssertionError(f"{name}: this instruction is not supported")
    return stage


def _stage(folder: Path, base: str, programs: str) -> Stage:
    for name in ("layer", "work", "root"):
        (folder / name).mkdir(parents=True)
    paths = f"{programs}:/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin"
    return Stage(folder, base, {"PATH": paths, "LANG": "C.UTF-8"})


def _begun(folder: Path, base: str, python: str) -> Stage:
    bin_folder = Path(python).parent
    stage = _stage(folder, base, str(bin_folder))
    # Only the owner of a home folder can run an interpreter in it.
    stage.run(f"chmod a+rx /root; ln -sf {python} {bin_folder}/python")
    return stage


def _copy(rest: str, stage: Stage, stages: dict[str, Stage], context: Path) -> None:
    *sources, target = rest.split()
    if sources[0].startswith("--from="):
        origin = stages[sources.pop(0).removeprefix("--from=")].layer
        sources = [source.lstrip("/") for source in sources]
    else:
        origin = context
    into = stage.layer / os.path.join(stage.workdir, target).lstrip("/")
    for source in sources:
        path = origin / source
        whole = into / path.name if target.endswith("/") else into
        if path.is_dir():
            shutil.copytree(path, whole, symlinks=True, dirs_exist_ok=True)
        else:
            whole.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, whole)


def _filled(text: str, variables: dict[str, str]) -> str:
    return re.sub(r"\$\{?(\w+)\}?", lambda match: variables[match[1]], text)
