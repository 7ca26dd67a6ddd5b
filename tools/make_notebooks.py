"""Notebooks of docs/examples from examples/keras_io, with their outputs.

    make notebooks

An example has keras.io's form: a header, then text in triple quotes, with code
between. Each text is a cell, and so is the code up to the next text. A link to
Colab and a cell that installs the package come first; the latter does not run
here.
"""

import argparse
import ast
import base64
import io
import os
import pathlib
import re
import tempfile
import tomllib
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[1]
EXAMPLES = sorted((ROOT / "examples" / "keras_io").glob("*.py"))
FOLDER = ROOT / "docs" / "examples"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
GITHUB = PROJECT["tool"]["keras-lanton"]["repository"]
REPOSITORY = GITHUB.removeprefix("https://github.com/")
COLAB = f"https://colab.research.google.com/github/{REPOSITORY}/blob/main"
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


def cells_of(path: pathlib.Path) -> list[Cell]:
    """All cells of an example's notebook."""
    source = path.read_text()
    extra = "[hub]" if "keras_hub" in source else ""
    fields = header(path)
    title = (
        f"# {fields['Title']}\n\n"
        f"[Open in Colab]({COLAB}/docs/examples/{path.stem}.ipynb)\n\n"
        f"{fields['Description']}"
    )
    install = (
        "import os\n\n"
        f'%pip install --quiet "keras-lanton{extra} @ git+{GITHUB}"\n'
        'os.environ["KERAS_BACKEND"] = "jax"  # or "torch", "tensorflow"'
    )
    found = [("markdown", title), ("code", install)]
    lines = source.splitlines(keepends=True)
    first, *others = ast.parse(source).body
    begin = first.end_lineno or 0  # of the header
    for node in others:
        value = getattr(node, "value", None)
        if isinstance(node, ast.Expr) and isinstance(value, ast.Constant):
            found.append(("code", "".join(lines[begin : node.lineno - 1])))
            found.append(("markdown", str(value.value)))
            begin = node.end_lineno or 0
    found.append(("code", "".join(lines[begin:])))
    cells = [(kind, text.strip("\n")) for kind, text in found]
    return [cell for cell in cells if cell[1]]


def executed(path: pathlib.Path) -> Any:
    """An example's notebook; its cells ran in an empty folder, on JAX."""
    from nbclient import NotebookClient
    from nbformat import v4

    make = {"code": v4.new_code_cell, "markdown": v4.new_markdown_cell}
    cells = [
        make[kind](source, id=f"cell-{number}")
        for number, (kind, source) in enumerate(cells_of(path))
    ]
    cells[1].metadata["tags"] = ["skip-execution"]
    kernel = {"display_name": "Python 3", "language": "python"}
    metadata = {
        "kernelspec": {**kernel, "name": "python3"},
        "language_info": {"name": "python"},
    }
    notebook = v4.new_notebook(cells=cells, metadata=metadata)
    search = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    with tempfile.TemporaryDirectory() as folder:
        NotebookClient(
            notebook,
            timeout=600,
            coalesce_streams=True,
            record_timing=False,
            resources={"metadata": {"path": folder}},
        ).execute(env={**os.environ, **ENVIRONMENT, "PYTHONPATH": search})
    notebook.metadata = metadata  # without the version of Python
    for cell in notebook.cells:
        outputs = cell.get("outputs", [])
        # A backend's messages are no results.
        kept = [one for one in outputs if one.get("name") != "stderr"]
        outputs[:] = kept
        for output in kept:
            tidy(output.get("data", {}))
    return notebook


def tidy(data: dict[str, str]) -> None:
    """Takes colours from text, and all but 256 from pictures: less to load."""
    from PIL import Image

    if "text/plain" in data:
        data["text/plain"] = re.sub(r"\x1b\[[\d;]*m", "", data["text/plain"])
    if "image/png" in data:
        image = Image.open(io.BytesIO(base64.b64decode(data["image/png"])))
        small = io.BytesIO()
        image.convert("RGB").quantize().save(small, "png", optimize=True)
        data["image/png"] = base64.b64encode(small.getvalue()).decode()


def make_notebook(path: pathlib.Path) -> None:
    """Writes a notebook that is valid and small.

    Raises:
        ValueError: For one of more than `LARGEST` bytes.
    """
    import nbformat

    notebook = executed(path)
    nbformat.validate(notebook)
    text = nbformat.writes(notebook) + "\n"
    if len(text) > LARGEST:
        raise ValueError(f"{path} has {len(text)} bytes, over {LARGEST}.")
    (FOLDER / f"{path.stem}.ipynb").write_text(text)


def main() -> None:
    """Makes all notebooks, or those that are named."""
    names = {path.stem: path for path in EXAMPLES}
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("name", nargs="*", help=f"of {', '.join(names)}")
    for name in parser.parse_args().name or names:
        make_notebook(names[name])


if __name__ == "__main__":
    main()
