"""Modules of a tasks folder: trusted ones only, and compiled from their source each time.

Python believes a `.pyc` file that names the time and the size of its source. So it could hold other
code than the source, which is what people read and what `TrustChecker` examines.
"""

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader, SourcelessFileLoader
from pathlib import Path
from types import CodeType, ModuleType

from graphile_worker._support.trust import TrustChecker


class SourceOnlyLoader(SourceFileLoader):
    """Neither reads nor writes a compiled file."""

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        return self.source_to_code(self.get_data(path), path)


class TaskFolderFinder(MetaPathFinder):
    """Finds what Python's own finder would, with other loaders for what lies in these folders.

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
        if (doubt := trust.find_problem(Path(spec.origin))) is not None:
            raise _build_import_error(spec, f"is not trusted: {doubt}")
        if isinstance(spec.loader, SourcelessFileLoader):
            raise _build_import_error(
                spec, "is compiled, and a tasks folder is read as source: put the .py file there"
            )
        if isinstance(spec.loader, SourceFileLoader):
            spec.loader = SourceOnlyLoader(fullname, spec.origin)
        return spec

    def _find_trust(self, file: Path) -> TrustChecker | None:
        # Compiled files lie beside a link, not beside the file that it leads to.
        folder = file.parent.resolve()
        found = (self.folders[each] for each in self.folders if folder.is_relative_to(each))
        return next(found, None)


def _build_import_error(spec: ModuleSpec, reason: str) -> ImportError:
    return ImportError(f"{spec.origin} {reason}", name=spec.name, path=spec.origin)


_finder = TaskFolderFinder()


def register_source_folder(folder: Path, trust: TrustChecker) -> None:
    """Import what lies in a folder from its source alone, for as long as this process runs."""
    _finder.folders[folder.resolve()] = trust
    if _finder not in sys.meta_path:
        place = sys.meta_path.index(PathFinder) if PathFinder in sys.meta_path else 0
        sys.meta_path.insert(place, _finder)


def list_source_folders() -> dict[str, bool]:
    """Those folders, and for each whether its files are trusted unexamined."""
    return {str(folder): trust.allow_unsafe for folder, trust in _finder.folders.items()}
