"""Complete the metadata of the package: the README with absolute links, and the project's links.

The package index shows the README outside the repository, where relative links lead nowhere. A
release sets `REPOSITORY_URL` to the public address of the repository. Without it, for example in a
checkout, the README stays as it is and no links are named.
"""

import os
import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

LINK = re.compile(r"(!?)(\[[^\]]*\]\()(?!https?://|#)([^)\s]+\))")
# The package index shows the first line of GitHub's alerts as text.
ALERT = re.compile(r"^> \[!\w+\]\n", re.MULTILINE)
PAGES = {"Documentation": "docs/index.md", "Changelog": "CHANGELOG.md"}


class MetadataHook(MetadataHookInterface):
    """Fill in `readme` and `urls`."""

    PLUGIN_NAME = "custom"

    def update(self, metadata: dict[str, Any]) -> None:
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        urls = {}
        if repository := os.environ.get("REPOSITORY_URL", "").rstrip("/"):
            tag = f"v{metadata['version']}"
            text = make_links_absolute(text, repository, tag)
            urls = {name: f"{repository}/blob/{tag}/{page}" for name, page in PAGES.items()}
            urls = {"Source": repository, **urls, "Issues": f"{repository}/issues"}
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
        metadata["urls"] = urls


def make_links_absolute(text: str, repository: str, tag: str) -> str:
    """Return the text with links to the files of a release, in place of relative ones."""

    def complete(link: re.Match[str]) -> str:
        kind = "raw" if link[1] else "blob"
        return f"{link[1]}{link[2]}{repository}/{kind}/{tag}/{link[3]}"

    return LINK.sub(complete, ALERT.sub("", text))
