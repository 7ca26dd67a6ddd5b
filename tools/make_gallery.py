"""The gallery: docs/gallery.md, and a thumbnail of each example.

    python tools/make_gallery.py

A notebook's thumbnail is a picture of its outputs; a program's is a picture of
docs/ that the program has drawn. `make notebooks` runs this at its end.
"""

import base64
import dataclasses
import io
import json
import pathlib
from typing import Any

import make_notebooks
from make_notebooks import ROOT

PAGE = ROOT / "docs" / "gallery.md"
WIDTH = 480  # pixels of a thumbnail


@dataclasses.dataclass(frozen=True)
class Card:
    """One example of the gallery.

    Args:
        path: The file, in the repository.
        time: How long it takes on two CPU cores, on JAX.
        picture: Of a notebook the number of a picture among its outputs; of a
            program a picture of docs/.
        alt: What the picture shows.
        panels: How many panels the picture has. The first is shown.
        title: Of a program. A notebook has it in its header.
        shows: One sentence, as the title.
    """

    path: str
    time: str
    picture: int | str
    alt: str = "Loss curves"
    panels: int = 1
    title: str = ""
    shows: str = ""

    @property
    def name(self) -> str:
        """The stem of the files that belong to it."""
        return pathlib.Path(self.path).stem

    @property
    def is_notebook(self) -> bool:
        """Whether its text and results are a notebook."""
        return "keras_io" in self.path


CARDS = (
    Card("examples/keras_io/gpt2_with_lanton.py", "half a minute", 0),
    Card("examples/keras_io/lora_fine_tuning_with_lanton.py", "a minute", 0),
    Card(
        "examples/keras_io/cnn_with_lanton.py",
        "half a minute",
        1,
        alt="Accuracy by epoch",
    ),
    Card(
        "examples/gpt2_pretraining.py",
        "2 minutes",
        "gpt2_demo.png",
        title="Pretraining a GPT-2",
        shows="Learn a vocabulary, train four layers with LANTON and AdamW, "
        "save, resume, and write text.",
    ),
    Card(
        "examples/llama_pretraining.py",
        "2 minutes",
        "noise_llama_demo.png",
        alt="Noise of hidden matrices and embeddings over the steps",
        panels=3,
        title="Pretraining a Llama",
        shows="The same with grouped queries, a gated MLP and a head of its "
        "own.",
    ),
    Card(
        "examples/cnn_images.py",
        "3 minutes",
        "noise_cnn.png",
        alt="Noise of the matrices over the steps",
        panels=3,
        title="The paper's convolutional network",
        shows="Train airbench94 on handwritten digits with LANTON and SGD.",
    ),
)

HEAD = """# Gallery

Every example runs on JAX, PyTorch and TensorFlow, on a CPU, without a download.
The times are those of JAX on two CPU cores.

"""
NOTEBOOKS_HEAD = """## Notebooks

Read a notebook here with its results, or run it on Colab.

"""
PROGRAMS_HEAD = """## Programs

A program is one file. It prints a table, and draws its curves. Run it in a
checkout:

```sh
pip install ".[jax,examples]"
KERAS_BACKEND=jax python examples/gpt2_pretraining.py
```

"""
FOOT = """`make notebooks` makes the notebooks, the thumbnails and this page.
"""


def page() -> str:
    """The text of docs/gallery.md."""
    notebooks = [card for card in CARDS if card.is_notebook]
    programs = [card for card in CARDS if not card.is_notebook]
    parts = [HEAD, NOTEBOOKS_HEAD, grid(notebooks)]
    return "".join([*parts, PROGRAMS_HEAD, grid(programs), FOOT])


def grid(cards: list[Card]) -> str:
    """A list of cards, which Material for MkDocs lays out as a grid."""
    text = "\n".join(map(card_text, cards))
    return f'<div class="grid cards" markdown>\n\n{text}\n</div>\n\n'


def card_text(card: Card) -> str:
    """Thumbnail, title, sentence, time and links of one card."""
    title, shows, links = card.title, card.shows, [source_link(card)]
    picture = f"![{card.alt}](gallery/{card.name}.png)"
    if card.is_notebook:
        fields = make_notebooks.header(ROOT / card.path)
        title, shows = fields["Title"], fields["Description"]
        here = f"gallery/{card.name}.ipynb"
        colab = f"{make_notebooks.COLAB}/docs/{here}"
        links = [f"[Read]({here})", f"[Colab]({colab})", *links]
        picture = f"[{picture}]({here})"
    parts = [
        picture,
        f"**{title}**",
        shows,
        f"Takes {card.time}. {' · '.join(links)}",
    ]
    return "-   " + "\n\n    ".join(parts) + "\n"


def source_link(card: Card) -> str:
    """A link to the source of an example."""
    return f"[Source]({make_notebooks.GITHUB}/blob/main/{card.path})"


def thumbnail(card: Card) -> Any:
    """The picture of a card, as a `PIL.Image.Image` of `WIDTH` pixels."""
    from PIL import Image

    if isinstance(card.picture, int):
        content = pictures_of(card)[card.picture]
    else:
        content = (ROOT / "docs" / card.picture).read_bytes()
    image = Image.open(io.BytesIO(content)).convert("RGB")
    image = image.crop((0, 0, image.width // card.panels, image.height))
    height = round(image.height * WIDTH / image.width)
    return image.resize((WIDTH, height), Image.Resampling.LANCZOS)


def pictures_of(card: Card) -> list[bytes]:
    """The pictures among the outputs of a card's notebook."""
    path = make_notebooks.notebook_path(ROOT / card.path)
    text = (ROOT / path).read_text()
    return [
        base64.b64decode(output["data"]["image/png"])
        for cell in json.loads(text)["cells"]
        for output in cell.get("outputs", ())
        if "image/png" in output.get("data", {})
    ]


def main() -> None:
    """Writes the page and the thumbnails."""
    PAGE.write_text(page())
    for card in CARDS:
        path = make_notebooks.NOTEBOOKS / f"{card.name}.png"
        thumbnail(card).quantize(64).save(path, optimize=True)
        print(f"{path.relative_to(ROOT)}: {path.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
