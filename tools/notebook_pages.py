"""A hook of MkDocs: each notebook of docs/gallery is a page of the site.

`docs/gallery/NAME.ipynb` becomes the page `gallery/NAME.md`, which mkdocs.yml
lists. Nothing is run: the pages have the outputs that are in the notebooks. A
link to the notebook in another page is for readers of the repository. On the
site it leads to the notebook's page.
"""

import base64
import json
import pathlib
import re
from typing import Any

# A picture of another server, which a page of the site does not ask.
BADGE = re.compile(r"\[!\[([^]]+)\]\(https:[^)]+\)\]\(")
LINK = re.compile(r"(?<=\()([\w/.]*gallery/\w+)\.ipynb(?=[)#])")


def on_files(files: Any, config: Any) -> Any:
    """Adds a page, and its pictures, for each notebook."""
    from mkdocs.structure.files import File

    for notebook in [f for f in files if f.src_uri.endswith(".ipynb")]:
        path = pathlib.PurePosixPath(notebook.src_uri)
        cells = json.loads(notebook.content_string)
        page, pictures = markdown(cells, path.stem)
        for name, content in {f"{path.stem}.md": page, **pictures}.items():
            uri = str(path.with_name(name))
            files.append(File.generated(config, uri, content=content))
    return files


def on_page_markdown(markdown: str, **kwargs: Any) -> str:
    """Leads links to notebooks to their pages."""
    return LINK.sub(r"\1.md", markdown)


def markdown(
    notebook: dict[str, Any], name: str
) -> tuple[str, dict[str, bytes]]:
    """A notebook as a page.

    Args:
        notebook: As JSON has it.
        name: The pictures' files begin with it.

    Returns:
        The text in Markdown, and the pictures' contents by file.
    """
    parts: list[str] = []
    pictures: dict[str, bytes] = {}
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(BADGE.sub(r"[\1](", source))
            continue
        parts.append(f"```python\n{source}\n```")
        for output in cell["outputs"]:
            data = output.get("data", {})
            if "image/png" in data:
                file = f"{name}_{len(pictures) + 1}.png"
                pictures[file] = base64.b64decode(data["image/png"])
                parts.append(f"![Output of the cell above]({file})")
            else:
                text = "".join(output.get("text") or data["text/plain"])
                parts.append(f"```text\n{text.rstrip()}\n```")
    return "\n\n".join(parts) + "\n", pictures
