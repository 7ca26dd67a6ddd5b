"""Notebooks of docs/gallery from examples/keras_io, with their outputs.

    make notebooks

An example has keras.io's form: a header, then text in triple quotes, with code
between. Each text is a cell, and so is the code up to the next text. A badge
for Colab and a cell that installs the package come first; the latter does not
run here. What a cell writes to stderr, such as a backend's messages, is left
out.
"""

import argparse
import ast
import base64
import io
import os
import pathlib
import re
import tempfile
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[1]
EXAMPLES = sorted((ROOT / "examples" / "keras_io").glob("*.py"))
NOTEBOOKS = ROOT / "docs" / "gallery"
# The only place that names where the repository is.
REPOSITORY = "keras-lanton/keras_lanton"
GITHUB = f"https://github.com/{REPOSITORY}"
COLAB = f"https://colab.research.google.com/github/{REPOSITORY}/blob/main"
BADGE = "https://colab.research.google.com/assets/colab-badge.svg"
LARGEST = 300_000  # bytes of a notebook
# The same on every machine.
ENVIRONMENT = {
    "KERAS_BACKEND": "jax",
    "JAX_PLATFORMS": "cpu",
    # The backend whose pictures are outputs, whatever the caller's is.
    "MPLBACKEND": "module://matplotlib_inline.backend_inline",
    "TF_CPP_MIN_LOG_LEVEL": "3",
}

Cell = tuple[str, str]  # "markdown" or "code", and its source


def header(path: pathlib.Path) -> dict[str, str]:
    """The fields of an example's header: Title, Description and others."""
    text = ast.get_docstring(ast.parse(path.read_text())) or ""
    return dict(re.findall(r"^([\w ]+): (.+)$", text, re.MULTILINE))


def example_cells(path: pathlib.Path) -> list[Cell]:
    """The cells of an example, without its header."""
    source = path.read_text()
    lines = source.splitlines(keepends=True)
    found: list[Cell] = []
    begin = 0
    for node in ast.parse(source).body:
        if not _is_text(node):
            continue
        found.append(("code", "".join(lines[begin : node.lineno - 1])))
        found.append(("markdown", node.value.value))
        begin = node.end_lineno
    found.append(("code", "".join(lines[begin:])))
    cells = [(kind, text.strip("\n")) for kind, text in found]
    return [cell for cell in cells if cell[1]][1:]  # [0] is the header


def _is_text(node: ast.stmt) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def notebook_cells(path: pathlib.Path) -> list[Cell]:
    """All cells of an example's notebook."""
    return [title_cell(path), install_cell(path), *example_cells(path)]


def title_cell(path: pathlib.Path) -> Cell:
    """Title, badge and what the example shows."""
    fields = header(path)
    lines = [
        f"# {fields['Title']}",
        f"[![Open in Colab]({BADGE})]({COLAB}/{notebook_path(path)})",
        fields["Description"],
    ]
    return "markdown", "\n\n".join(lines)


def install_cell(path: pathlib.Path) -> Cell:
    """Installs what Colab does not have, and chooses the backend."""
    extra = "[hub]" if "keras_hub" in path.read_text() else ""
    lines = [
        "import os",
        "",
        f'%pip install --quiet "keras-lanton{extra} @ git+{GITHUB}"',
        'os.environ["KERAS_BACKEND"] = "jax"  # or "torch", "tensorflow"',
    ]
    return "code", "\n".join(lines)


def notebook_path(path: pathlib.Path) -> str:
    """Where an example's notebook is, in the repository."""
    name = (NOTEBOOKS / path.stem).relative_to(ROOT)
    return f"{name.as_posix()}.ipynb"


def make_notebook(path: pathlib.Path) -> Any:
    """An `nbformat` notebook of an example, without outputs."""
    from nbformat import v4

    cells = []
    for number, (kind, source) in enumerate(notebook_cells(path)):
        new = v4.new_code_cell if kind == "code" else v4.new_markdown_cell
        cells.append(new(source, id=f"cell-{number}"))
    cells[1].metadata["tags"] = ["skip-execution"]
    return v4.new_notebook(
        cells=cells,
        metadata={
            "kernelspec": {
                "display_name": "Python 3",
                "language": "python",
                "name": "python3",
            },
            "language_info": {"name": "python"},
        },
    )


def execute(notebook: Any) -> None:
    """Runs the cells on JAX, in an empty folder, and keeps their outputs."""
    from nbclient import NotebookClient

    search = (str(ROOT), os.environ.get("PYTHONPATH", ""))
    environment = {
        **os.environ,
        **ENVIRONMENT,
        "PYTHONPATH": os.pathsep.join(filter(None, search)),
    }
    metadata = dict(notebook.metadata)
    with tempfile.TemporaryDirectory() as folder:
        NotebookClient(
            notebook,
            timeout=600,
            coalesce_streams=True,
            record_timing=False,
            resources={"metadata": {"path": folder}},
        ).execute(env=environment)
    notebook.metadata.update(metadata)  # not the version of Python
    for cell in notebook.cells:
        if cell.cell_type == "code":
            kept = [one for one in cell.outputs if one.get("name") != "stderr"]
            cell.outputs = kept
            for output in kept:
                _tidy(output.get("data", {}))


def _tidy(data: dict[str, str]) -> None:
    """Takes colours from text, and all but 256 from pictures: less to load."""
    from PIL import Image

    if "text/plain" in data:
        data["text/plain"] = re.sub(r"\x1b\[[\d;]*m", "", data["text/plain"])
    if "image/png" in data:
        content = io.BytesIO(base64.b64decode(data["image/png"]))
        small = io.BytesIO()
        Image.open(content).convert("RGB").quantize().save(
            small, "png", optimize=True
        )
        data["image/png"] = base64.b64encode(small.getvalue()).decode()


def write(notebook: Any, path: pathlib.Path) -> None:
    """Writes a notebook that is valid and small.

    Raises:
        ValueError: For one of more than `LARGEST` bytes.
    """
    import nbformat

    nbformat.validate(notebook)
    text = nbformat.writes(notebook) + "\n"
    if len(text) > LARGEST:
        raise ValueError(f"{path} has {len(text)} bytes, over {LARGEST}.")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    print(f"{path.relative_to(ROOT)}: {len(text) / 1000:.0f} kB")


def main() -> None:
    """Makes all notebooks, or those that are named."""
    names = {path.stem: path for path in EXAMPLES}
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("name", nargs="*", help=f"of {', '.join(names)}")
    for name in parser.parse_args().name or names:
        notebook = make_notebook(names[name])
        execute(notebook)
        write(notebook, ROOT / notebook_path(names[name]))


if __name__ == "__main__":
    main()
