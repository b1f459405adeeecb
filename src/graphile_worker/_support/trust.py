"""Trust: decide whether the worker may run the files at a path.

One rule for the tasks folder, a single task file, executables, the crontab and the config file,
because any user who can change one of them decides which code runs as the worker.
"""

import errno
import logging
import os
import shlex
import stat
from collections.abc import Iterator
from pathlib import Path

from graphile_worker._support.error_format import make_printable
from graphile_worker.errors import ConfigurationError

# The limit of Linux on the symbolic links in a path.
MAX_LINKS = 40

# Paths that a warning lists. It counts the others.
MAX_LISTED_PATHS = 3

ROOT_USER = 0

logger = logging.getLogger("graphile_worker")


class TrustChecker:
    """Check a file or folder, the files below it, and the folders on the path to each of them.

    A path is not trusted if any user may write to it, or to a link or folder on the path, unless
    that folder has the sticky bit. It is not trusted either if the owner of one of these is
    neither root, the user of this process, nor the owner of the working directory or of the mount.
    On a read-only mount, permissions and owners do not matter.
    """

    def __init__(self, path: Path, *, allow_unsafe: bool = False) -> None:
        self.allow_unsafe = allow_unsafe
        self._path = path
        self._is_checked = not allow_unsafe and os.name != "nt"
        self._owners = _find_trusted_owners(path) if self._is_checked else frozenset()
        self._group_writable: dict[Path, None] = {}

    def check(self, what: str) -> None:
        """Raise ConfigurationError unless the path is trusted."""
        if (problem := self.find_problem(self._path)) is not None:
            raise ConfigurationError(
                f"{what} {make_printable(self._path)} is not trusted: {problem}, or pass "
                "--allow-unsafe-tasks to skip this check"
            )

    def find_problem(self, path: Path) -> str | None:
        """Return why a path is not trusted and what to do, or None if it is trusted."""
        if not self._is_checked:
            return None
        try:
            for step, status in _walk_path(path):
                problem = self._find_step_problem(step, status)
                if problem is not None and not _is_read_only(step, status):
                    return problem
        except OSError as error:
            return f"{make_printable(path)} cannot be examined ({error.strerror}): make it readable"
        return None

    def warn_group_writable(self) -> None:
        """Log the checked paths that the members of a group may change."""
        if paths := list(self._group_writable):
            listed = [shlex.quote(make_printable(path)) for path in paths[:MAX_LISTED_PATHS]]
            more = (
                f" and {len(paths) - MAX_LISTED_PATHS} more"
                if len(paths) > MAX_LISTED_PATHS
                else ""
            )
            logger.warning(
                "members of a group may change %s%s, and with them what this worker runs: to "
                "prevent this, run chmod g-w %s",
                ", ".join(listed),
                more,
                " ".join(listed),
            )

    def _find_step_problem(self, path: Path, status: os.stat_result) -> str | None:
        mode, owner = status.st_mode, status.st_uid
        if owner not in self._owners:
            return (
                f"{make_printable(path)} belongs to user {owner}, who is neither root, the user "
                f"of this process ({os.geteuid()}) nor the owner of the working directory: run "
                f"chown -h {os.geteuid()} {shlex.quote(make_printable(path))} or mount it "
                "read-only"
            )
        if not _has_permissions(mode) or _is_sticky_folder(mode):
            return None
        if mode & stat.S_IWOTH:
            return (
                f"any user may change {make_printable(path)}: run chmod o-w "
                f"{shlex.quote(make_printable(path))}"
            )
        if mode & stat.S_IWGRP and not _is_read_only(path, status):
            self._group_writable[path] = None
        return None


def _walk_path(path: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """Yield each folder and each link on the path to a file, and then the file."""
    left = list(reversed(path.absolute().parts))
    folder = Path()
    links = 0
    while left:
        # An absolute name, which links may have, starts at the root.
        name = left.pop()
        step = folder.parent if name == ".." else folder / name
        try:
            status = os.lstat(step)
        except FileNotFoundError:
            # /proc has links to files without a name, for example to the pipe of `<(command)`.
            yield path, os.stat(path)
            return
        yield step, status
        if not stat.S_ISLNK(status.st_mode):
            folder = step
            continue
        links += 1
        if links > MAX_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        left.extend(reversed(Path(os.readlink(step)).parts))


def _find_trusted_owners(path: Path) -> frozenset[int]:
    # In a user namespace the files of root may have another owner: that of the folder /.
    owners = {ROOT_USER, os.geteuid(), os.stat("/").st_uid, os.stat(".").st_uid}
    if _is_mount_point(path):
        owners.add(path.stat().st_uid)
    return frozenset(owners)


def _is_mount_point(path: Path) -> bool:
    """Return whether it is a mount, for example a folder that `docker run -v` adds to a container.

    Only root can mount. The device number does not show a bind mount.
    """
    try:
        mounts = Path("/proc/self/mountinfo").read_text(errors="surrogateescape")
        name = str(path.resolve(strict=True))
    except (OSError, RuntimeError):
        # Circular links are a RuntimeError before Python 3.13.
        return False
    for special in ("\\", " ", "\t", "\n"):
        name = name.replace(special, f"\\{ord(special):03o}")
    return any(name in line.split(" ")[4:5] for line in mounts.split("\n"))


def _is_read_only(path: Path, status: os.stat_result) -> bool:
    """Return whether it is on a read-only mount."""
    try:
        target = path.parent if stat.S_ISLNK(status.st_mode) else path
        return bool(os.statvfs(target).f_flag & os.ST_RDONLY)
    except OSError:
        return False


def _has_permissions(mode: int) -> bool:
    """Return whether permissions matter. Links have none, and nothing is read from /dev/null."""
    return not stat.S_ISLNK(mode) and not stat.S_ISCHR(mode)


def _is_sticky_folder(mode: int) -> bool:
    """Return whether users may add files, but not replace or remove files of other owners."""
    return stat.S_ISDIR(mode) and bool(mode & stat.S_ISVTX)
