"""Metadata of the package that depends on who builds it: the description for an index, and URLs of the repository.

A release names its repository in ``HALFMOON_URL``, as the workflow does: links of the README then lead there, at the version's tag.
Without it the wheel has no URLs, and the links stay as they are in a clone.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

LINK = re.compile(r"(!?\[[^\]]*\]\()(?!\w+:|#)([^)\s]+)\)")


def described(readme: str, url: str, version: str) -> str:
    """Return the README with absolute links and addresses of pictures."""

    def absolute(link: re.Match[str]) -> str:
        kind = "raw" if link[1].startswith("!") else "blob"
        return f"{link[1]}{url}/{kind}/v{version}/{link[2]})"

    return LINK.sub(absolute, readme)


class Metadata(MetadataHookInterface):
    """Hook of Hatch, which the build calls."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Set the fields ``readme`` and ``urls``."""
        text, url = (Path(self.root) / "README.md").read_text(encoding="utf-8"), os.environ.get("HALFMOON_URL", "").rstrip("/")
        if url:
            tree = f"{url}/blob/v{metadata['version']}"
            metadata["urls"] = {
                "Documentation": f"{tree}/docs/getting-started.md", "Source": url, "Issues": f"{url}/issues",
                "Changes": f"{tree}/CHANGELOG.md",
            }  # fmt: skip
            text = described(text, url, metadata["version"])
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
