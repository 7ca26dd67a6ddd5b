"""A hook of MkDocs: documents of the repository's root are pages of the site.

The README is the first page, and its links lead to the other pages.
"""

import pathlib
import re
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[1]
PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security.md",
}
LINK = re.compile(r"\]\((?P<folder>docs/)?(?P<page>[\w/.]+)(?P<rest>[#)])")


def as_page(text: str) -> str:
    """A document of the root, with links from the site's first folder."""

    def link(found: re.Match[str]) -> str:
        page = PAGES.get(found["page"], found["page"])
        return f"]({page}{found['rest']}"

    return LINK.sub(link, text)


def on_files(files: Any, config: Any, **kwargs: Any) -> Any:
    """Adds the pages."""
    from mkdocs.structure.files import File

    for source, page in PAGES.items():
        text = as_page((ROOT / source).read_text())
        files.append(File.generated(config, page, content=text))
    return files
