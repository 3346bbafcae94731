"""Hook of mkdocs, for `make site`: pages and sources outside `docs/` that pages link to are part of the site.

The README is its first page.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parent.parent
OUTSIDE = ("CHANGELOG.md", "SECURITY.md", "CONTRIBUTING.md", *(f"examples/**/*.{kind}" for kind in ("md", "py", "java", "go")))
_LINK = re.compile(r"\]\(((?:\.\./)+)([^)\s#]+)")


def on_files(files: Files, *, config: Any) -> Files:
    """Add what stands outside, at the same path below the site's root. A hook of mkdocs."""
    files.append(File.generated(config, "index.md", content=(ROOT / "README.md").read_text(encoding="utf-8")))
    for pattern in OUTSIDE:
        for path in sorted(ROOT.glob(pattern)):
            uri = path.relative_to(ROOT).as_posix()
            if not files.get_file_from_path(uri):
                files.append(File.generated(config, uri, content=path.read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Have links that lead out of `docs/`, or from outside into it, lead to the same page of the site. A hook of mkdocs."""
    uri = page.file.src_uri
    if page.file.generated_by:
        return markdown.replace("](docs/", f"]({'../' * uri.count('/')}").replace("../docs/", "../")

    def inside(link: re.Match[str]) -> str:
        up, path = link[1].count("../"), link[2]
        if up != uri.count("/") + 1:
            return link[0]
        return f"]({'../' * (up - 1)}{'index.md' if path == 'README.md' else path}"

    return _LINK.sub(inside, markdown)
