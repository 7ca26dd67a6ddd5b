"""The pictures of docs/how_it_works.md, from one short training run.

    KERAS_BACKEND=jax python tools/make_pictures.py

trains a small GPT-2 with Lanton on the bytes of Python's standard library, a
minute on one core, and writes PNG files to docs/how_it_works. It prints how
large the updates of common and of rare bytes are. `--steps` makes the run
shorter, `--output` writes elsewhere.
"""

import argparse
import io
import pathlib
import sys
import types

import keras
import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from experiments.corpora import stdlib_documents  # noqa: E402
from experiments.models import make_model  # noqa: E402
from keras_lanton import Lanton  # noqa: E402
from keras_lanton import NewtonSchulz  # noqa: E402
from keras_lanton.callbacks import NoiseMonitor  # noqa: E402

SEED = 0
BATCH_SIZE = 16  # blocks of CONTEXT bytes
CONTEXT = 64
BYTES = 256
NOISE_BATCHES = 32
# Of the momentum's noise, over that of a gradient: of `Lanton()`.
MOMENTUM_VARIANCE = 0.03
MODEL = types.SimpleNamespace(
    model="gpt2",
    scaled_kernels=False,
    layers=4,
    heads=2,
    width=64,
    feed_forward=None,
    dropout=0.0,
    context=CONTEXT,
    dtype_policy="float32",
)
# Okabe and Ito's colors, distinct for color-blind readers.
BLUE, ORANGE, GREEN, GREY = "#0072B2", "#D55E00", "#009E73", "#595959"
STYLE = {
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "figure.facecolor": "white",
    "savefig.facecolor": "white",
}
WIDTH = 7.2  # inches; a page shows 690 pixels, so 10 points are 13 pixels
NARROW = 4.6  # of what a phone shows whole, with 10 points as 10 pixels
# Kinds of matrices by a part of their path, in the order of the model.
KINDS = {
    "token_embedding": "token embedding",
    "position_embedding": "position embedding",
    "query": "query",
    "key": "key",
    "value": "value",
    "attention_output": "attention output",
    "feedforward_intermediate": "MLP, first",
    "feedforward_output": "MLP, second",
}


# -- The run -----------------------------------------------------------------


class StateRecorder(keras.callbacks.Callback):
    """Records how often each matrix was measured, after every step."""

    def __init__(self):
        super().__init__()
        self.measurements = []

    def on_train_batch_end(self, batch, logs=None):
        """Record after a step."""
        if hasattr(self.model, "jax_state_sync"):
            self.model.jax_state_sync()
        counts = state(self.model.optimizer)["measurements"]
        self.measurements.append(counts.copy())

    @property
    def measured(self):
        """Whether each matrix with a norm was measured, by step from 2."""
        found = np.diff(self.measurements, axis=0) > 0
        return found[:, found.any(0)]


def state(optimizer):
    """The optimizer's variables as arrays, by name; the last of each name."""
    return {
        v.path.split("/")[-1]: keras.ops.convert_to_numpy(v)
        for v in optimizer.variables
    }


def batches(data, steps):
    """Random blocks of bytes; the targets are one byte later."""
    random = np.random.default_rng(SEED)
    for _ in range(steps):
        starts = random.integers(0, len(data) - CONTEXT - 1, BATCH_SIZE)
        blocks = data[starts[:, None] + np.arange(CONTEXT + 1)].astype("int32")
        x = blocks[:, :-1]
        yield {"token_ids": x, "padding_mask": np.ones_like(x)}, blocks[:, 1:]


def train(steps):
    """A run of Lanton, and what the pictures show of it."""
    keras.utils.set_random_seed(SEED)
    documents, _ = stdlib_documents()
    data = np.frombuffer("".join(documents).encode(), "uint8")
    language_model = make_model(MODEL, BYTES)
    # KerasHub's own `fit` needs TensorFlow: a plain model of the same layers.
    model = keras.Model(language_model.input, language_model.output)
    schedule = keras.optimizers.schedules.CosineDecay(5e-3, steps)
    model.compile(
        optimizer=Lanton(schedule),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        weighted_metrics=[],
    )
    monitor, recorder = NoiseMonitor(every=1), StateRecorder()
    model.fit(
        batches(data, steps),
        steps_per_epoch=steps,
        verbose=2,
        shuffle=False,
        callbacks=[monitor, recorder],
    )
    tail = max(1, steps // 2)  # steps whose mean noise is shown
    print_updates(model, np.bincount(data, minlength=BYTES) / len(data))
    return {
        "paths": monitor.paths,
        "noise": monitor.noise[-tail:].mean(0),
        "measured": recorder.measured,
        "momentum": momentum_of(model, "feedforward_intermediate_dense/kernel"),
        "rows": row_noise(model, batches(data, NOISE_BATCHES)),
        "shares": np.bincount(data, minlength=BYTES) / len(data),
    }


def momentum_of(model, name):
    """The momentum of the first weights in a layer of that name."""
    optimizer = model.optimizer
    paths = [spec.path for spec in optimizer.layers]
    i = next(i for i, p in enumerate(paths) if name in p)
    kept = [v for v in optimizer.variables if v.path.endswith("momentum")]
    return keras.ops.convert_to_numpy(kept[i])


def print_updates(model, shares):
    """The noise and the last updates of the token embedding's rows."""
    M = momentum_of(model, "token_embedding")
    found = state(model.optimizer)
    # A sample is a difference of two gradients.
    rows = found["row_noise_0"][0] / 2**0.5
    columns = found["col_noise_0"][0] / 2**0.5
    mean = np.sqrt(np.mean(columns**2))
    deviation = rows[:, None] * columns / mean  # of the noise of each entry
    V_M = MOMENTUM_VARIANCE * deviation**2
    updates = np.abs(M) / np.sqrt(M**2 + np.maximum(V_M, 1e-30))
    for low, high in ((0.01, 1), (1e-3, 0.01), (1e-4, 1e-3), (0, 1e-4)):
        here = (shares > low) & (shares <= high)
        print(
            f"{here.sum():3} bytes with {low:.2%} to {high:.2%} of the text: "
            f"noise {rows[here].mean() / mean:.3f}, "
            f"updates {updates[here].mean():.2f} of the largest"
        )


def row_noise(model, some):
    """The noise of the token embedding's rows, over the mean of all.

    Gradients are told by steps of SGD, each from the same weights.

    Args:
        model: Trained; compiled anew.
        some: Batches `(x, y)`.
    """
    start, gradients = model.get_weights(), []
    (at,) = (
        i
        for i, variable in enumerate(model.weights)
        if "token_embedding" in variable.path
    )
    model.compile("sgd", loss=model.loss)
    for x, y in some:
        model.train_on_batch(x, y)
        gradients.append(start[at] - model.get_weights()[at])
        model.set_weights(start)
    differences = np.diff(gradients, axis=0)
    noise = np.sqrt(np.mean(differences**2, axis=(0, 2)))
    return noise / np.sqrt(np.mean(noise**2))


def polar(M):
    """U V^T of a matrix, by the default's steps of Newton-Schulz."""
    X = M / np.linalg.norm(M)
    for a, b, c in NewtonSchulz().rows:
        A = X @ X.T
        X = a * X + (b * A + c * A @ A) @ X
    return X


# -- The pictures ------------------------------------------------------------


def draw_lmo(figure):
    """Unit balls of two norms, a gradient, and the LMO of each."""
    down = np.array([0.9, 0.35])  # minus the gradient
    angle = np.linspace(0, 2 * np.pi, 200)
    circle = np.stack([np.cos(angle), np.sin(angle)])
    square = np.array([[1, 1, -1, -1, 1], [1, -1, -1, 1, 1]])
    panels = (
        ("Normalizing", circle, down / np.linalg.norm(down), "entry"),
        ("Lanton", square, np.sign(down), "singular value"),
    )
    for axes, panel in zip(figure.subplots(1, 2), panels, strict=True):
        draw_ball(axes, down, *panel)
        axes.set_title(panel[0], pad=8)


def draw_ball(axes, down, title, ball, step, unit):
    """A unit ball, a gradient, and the step of the LMO."""
    across = np.array([-down[1], down[0]]) / np.linalg.norm(down)
    for level in (-1.0, -0.5, 0.0, 0.5):  # of the linearized loss
        line = level * step[:, None] + 3 * across[:, None] * [-1, 1]
        axes.plot(*line, color=GREY, lw=0.7, ls=":", zorder=1)
    last = step[:, None] + 3 * across[:, None] * [-1, 1]
    axes.plot(*last, color=GREY, lw=1.2, ls="--", zorder=1)
    axes.fill(*ball, color=BLUE, alpha=0.12, lw=0, zorder=0)
    axes.plot(*ball, color=BLUE, lw=1.5, zorder=2)
    draw_arrow(axes, step, ORANGE, width=2.5)
    draw_arrow(axes, 0.6 * down, "black", width=1.5)
    behind = {"facecolor": "white", "alpha": 0.85, "lw": 0, "pad": 0.6}
    axes.text(0.04, -0.3, "$-$gradient", bbox=behind, zorder=4)
    axes.text(
        *(step + [-0.3, 0.16]), "LMO", color=ORANGE, bbox=behind, zorder=4
    )
    axes.text(-0.6, -0.72, "norm 1", color=BLUE, bbox=behind, zorder=4)
    axes.set(
        title=title,
        xlabel=f"{unit} 1",
        ylabel=f"{unit} 2",
        xlim=(-1.3, 1.6),
        ylim=(-1.3, 1.45),
        xticks=(-1, 0, 1),
        yticks=(-1, 0, 1),
        aspect="equal",
    )


def draw_arrow(axes, end, color, *, width):
    """An arrow from the origin."""
    style = {"arrowstyle": "-|>", "color": color, "lw": width}
    style |= {"shrinkA": 0, "shrinkB": 0}
    axes.annotate("", end, (0, 0), arrowprops=style, zorder=5)


def draw_singular_values(figure, momentum):
    """Singular values of a momentum before and after Newton-Schulz."""
    before, after = (
        np.linalg.svd(x, compute_uv=False) for x in (momentum, polar(momentum))
    )
    axes = figure.subplots()
    numbers = np.arange(1, len(before) + 1)
    axes.axhline(1, color=GREY, lw=1, ls=":")
    axes.plot(numbers, before / before[0], "s", color=ORANGE, ms=4)
    axes.plot(numbers, after, "o", color=BLUE, ms=4)
    middle = len(before) // 2
    axes.text(
        middle,
        1.9,
        "after five steps: all near 1",
        color=BLUE,
        ha="center",
    )
    axes.text(
        middle + 2,
        1.5 * before[middle] / before[0],
        "before: the momentum",
        color=ORANGE,
        ha="left",
    )
    axes.set(
        xlabel="number of the singular value",
        ylabel="singular value",
        yscale="log",
        ylim=(0.6 * before[-1] / before[0], 4),
    )
    ticks = (0.0001, 0.001, 0.01, 0.1, 1)
    axes.set_yticks(ticks, [f"{tick:g}" for tick in ticks])


def draw_noise(figure, run):
    """Noise by matrix, and by row of the token embedding."""
    left, right = figure.subplots(1, 2, width_ratios=(1.15, 1))
    names = list(KINDS.values())
    kinds = [
        next(name for part, name in KINDS.items() if part in path)
        for path in run["paths"]
    ]
    for i, name in enumerate(names):
        mine = run["noise"][[kind == name for kind in kinds]]
        color = GREEN if "embedding" in name else BLUE
        left.plot(mine, [i] * len(mine), "o", color=color, ms=6, alpha=0.7)
        left.axhline(i, color=GREY, lw=0.3, zorder=0)
    left.set_yticks(range(len(names)), names)
    left.invert_yaxis()
    left.set(
        title="Between matrices",
        xlabel="noise, in units of its own momentum",
        xlim=(0, 1.08 * run["noise"].max()),
    )
    seen = run["shares"] > 0
    right.plot(
        100 * run["shares"][seen],
        run["rows"][seen],
        "o",
        color=GREEN,
        ms=4,
        alpha=0.7,
    )
    for byte, up in ((" ", -3), ("v", 5), ("z", 5), ("~", 5)):
        at = 100 * run["shares"][ord(byte)], run["rows"][ord(byte)]
        right.annotate(
            "space" if byte == " " else byte,
            at,
            (-6, up),
            textcoords="offset points",
            ha="right",
        )
    right.set(
        title="Within the token embedding",
        xlabel="share of the byte in the text, %",
        ylabel="noise of the row, over the mean",
        xscale="log",
        yscale="log",
    )


def draw_schedule(figure, run, steps=24):
    """Which matrices are measured on which step."""
    axes = figure.subplots()
    measured = run["measured"][:steps].T
    matrices, columns = np.nonzero(measured)
    axes.plot(
        columns + 2,  # differences start at step 2
        matrices + 1,
        "s",
        color=BLUE,
        ms=4.5,
    )
    chosen = len(measured) // 2
    first, second = np.flatnonzero(measured[chosen])[:2] + 2
    axes.annotate(
        "",
        (second - 0.3, chosen + 1),
        (first + 0.3, chosen + 1),
        arrowprops={"arrowstyle": "<->", "color": ORANGE, "lw": 1.5},
    )
    axes.text(
        (first + second) / 2,
        chosen + 0.4,
        "10 steps",
        color=ORANGE,
        ha="center",
        va="bottom",
    )
    axes.set(
        xlabel="step",
        ylabel="number of the matrix",
        xticks=[2, *range(5, steps + 2, 5)],
        xlim=(0.5, steps + 1.7),
        ylim=(len(measured) + 0.8, 0.2),
    )


def draw_ratio(figure):
    """The fraction of a matrix by its noise, for some alpha."""
    axes = figure.subplots()
    noise = np.geomspace(0.1, 100, 300)
    for alpha, color, y, width in (
        (3.0, GREEN, 0.93, 1.5),
        (1.0, BLUE, 0.85, 2.5),
        (0.3, ORANGE, 0.77, 1.5),
    ):
        fraction = (1 + (noise / alpha) ** 2) ** -0.25
        axes.plot(noise, fraction, color=color, lw=width)
        axes.text(20, y, f"alpha = {alpha:g}", color=color)
    for x in (1, 10):
        y = (1 + x**2) ** -0.25
        axes.plot(x, y, "o", color=BLUE)
        axes.annotate(
            f"{100 * y:.0f} %",
            (x, y),
            (5, -2),
            textcoords="offset points",
            color=BLUE,
        )
    axes.set(
        xlabel="noise, in units of its own momentum",
        ylabel="fraction",
        xscale="log",
        ylim=(0, 1.05),
    )
    axes.set_xticks((0.1, 1, 10, 100), ("0.1", "1", "10", "100"))


def save(figure, path):
    """A PNG of 64 colors: a third of the size, and no visible difference."""
    from PIL import Image

    whole = io.BytesIO()
    figure.savefig(whole, dpi=150)
    image = Image.open(whole).convert("RGB")
    image.quantize(64, dither=Image.Dither.NONE).save(path, optimize=True)


def main(arguments=None):
    """Train, and draw all pictures."""
    import matplotlib
    from matplotlib.figure import Figure

    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--output", default="docs/how_it_works")
    options = parser.parse_args(arguments)
    folder = pathlib.Path(options.output)
    folder.mkdir(parents=True, exist_ok=True)
    run = train(options.steps)
    pictures = {
        "lmo": (2.4, draw_lmo, ()),
        "singular_values": (2.8, draw_singular_values, (run["momentum"],)),
        "noise": (3.3, draw_noise, (run,)),
        "schedule": (3.2, draw_schedule, (run,)),
        "ratio": (2.8, draw_ratio, ()),
    }
    with matplotlib.rc_context(STYLE):
        for name, (height, draw, given) in pictures.items():
            width = WIDTH if name in ("noise", "schedule") else NARROW
            figure = Figure(figsize=(width, height), layout="constrained")
            draw(figure, *given)
            save(figure, folder / f"{name}.png")


if __name__ == "__main__":
    main()
