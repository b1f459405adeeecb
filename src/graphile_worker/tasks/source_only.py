"""Import the modules of a tasks folder only from trusted source, never from compiled files.

Python trusts a `.pyc` file with the time and the size of its source. So the file could contain
other code than the source, which people read and `TrustChecker` checks.
"""

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader, SourcelessFileLoader
from pathlib import Path
from types import CodeType, ModuleType

from graphile_worker._support.trust import TrustChecker


class SourceOnlyLoader(SourceFileLoader):
    """A loader that neither reads nor writes compiled files."""

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        return self.source_to_code(self.get_data(path), path)


class TaskFolderFinder(MetaPathFinder):
    """Python's finder with other loaders for modules in these folders.

    A task may import other files of its folder by the name of that folder.
    """

    def __init__(self) -> None:
        self.folders: dict[Path, TrustChecker] = {}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None, /
    ) -> ModuleSpec | None:
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is None or spec.origin is None or not spec.has_location:
            return spec
        trust = self._find_trust(Path(spec.origin))
        if trust is None:
            return spec
        if (problem := trust.find_problem(Path(spec.origin))) is not None:
            raise _build_import_error(spec, f"is not trusted: {problem}")
        if isinstance(spec.loader, SourcelessFileLoader):
            raise _build_import_error(
                spec, "is compiled. A tasks folder needs the source: put the .py file there."
            )
        if isinstance(spec.loader, SourceFileLoader):
            spec.loader = SourceOnlyLoader(fullname, spec.origin)
        return spec

    def _find_trust(self, file: Path) -> TrustChecker | None:
        # Compiled files are next to a link, not next to its target.
        folder = file.parent.resolve()
        trusts = (self.folders[each] for each in self.folders if folder.is_relative_to(each))
        return next(trusts, None)


def _build_import_error(spec: ModuleSpec, reason: str) -> ImportError:
    return ImportError(f"{spec.origin} {reason}", name=spec.name, path=spec.origin)


_finder = TaskFolderFinder()


def register_source_folder(folder: Path, trust: TrustChecker) -> None:
    """Import the modules of a folder only from source, in this process."""
    _finder.folders[folder.resolve()] = trust
    if _finder not in sys.meta_path:
        index = sys.meta_path.index(PathFinder) if PathFinder in sys.meta_path else 0
        sys.meta_path.insert(index, _finder)


def list_source_folders() -> dict[str, bool]:
    """Return these folders, and for each whether its files are trusted unchecked."""
    return {str(folder): trust.allow_unsafe for folder, trust in _finder.folders.items()}
