"""A hook of MkDocs: pages that docstrings name are links.

A docstring names a page as `help()` should show it: docs/results.md. On
docs/api.md that becomes a link to the page.
"""

import logging
import re
from typing import Any

log = logging.getLogger("mkdocs.hooks")
# Sources stay as they are.
NAMED = re.compile(r"<pre\b.*?</pre>|docs/([\w/]+\.md)", re.DOTALL)


def on_page_content(html: str, page: Any, files: Any, **kwargs: Any) -> str:
    """Makes links, on docs/api.md."""
    if page.file.src_uri != "api.md":
        return html

    def link(found: re.Match[str]) -> str:
        if found[1] is None:
            return found[0]
        file = files.get_file_from_path(found[1])
        if file is None:  # an error with `--strict`
            log.warning("%s: no page %s", page.file.src_uri, found[0])
            return found[0]
        url = file.url_relative_to(page.file)
        return f'<a href="{url}">{found[0]}</a>'

    return NAMED.sub(link, html)
