"""A table, a picture and a sample of text from finished runs."""

import statistics

import numpy as np

from experiments.arguments import print_table
from experiments.styles import STYLES
from experiments.training import compile_model


def print_runs(histories):
    """One line per run. The training loss is the mean of the last 20 steps."""
    print_table(
        [
            {
                "optimizer": history["settings"]["optimizer"],
                "learning rate": f"{history['settings']['learning_rate']:g}",
                "steps": str(history["settings"]["steps"]),
                "loss": f"{statistics.mean(history['loss'][-20:]):.3f}",
                "validation loss": f"{history['validation_loss'][-1]:.3f}",
                "seconds/step": f"{statistics.median(history['seconds']):.2f}",
            }
            for history in histories
        ]
    )


def smooth(values, window):
    """Means over the last `window` values, over fewer at the start."""
    sums = np.cumsum([0.0, *values])
    stops = np.arange(1, len(values) + 1)
    starts = np.maximum(stops - window, 0)
    return (sums[stops] - sums[starts]) / (stops - starts)


def plot(histories, path):
    """Draw all loss curves."""
    import matplotlib

    matplotlib.use("agg")  # draws to a file, needs no display
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 5), layout="constrained")
    for history in histories:
        name = history["settings"]["optimizer"]
        rate = history["settings"]["learning_rate"]
        label, colour, marker = STYLES[name]
        losses = smooth(history["loss"], 10)
        steps = np.arange(1, len(losses) + 1)
        axes.plot(steps, losses, ":", color=colour)
        found = history["validation_step"], history["validation_loss"]
        style = {"color": colour, "marker": marker}
        axes.plot(*found, label=f"{label}\nrate {rate:g}", **style)
    axes.set_xlabel("step")
    axes.set_ylabel("loss (nats per token)")
    axes.set_title("solid: validation; dotted: training, mean of 10 steps")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=150)
    pyplot.close(figure)
    print(f"Loss curves: {path}")


def print_sample(run, data):
    """The trained model continues the first held-out tokens."""
    model, _ = compile_model(run, data.tokenizer.get_vocab_size())
    model.load_weights(run.checkpoint)
    context = run.preset.context
    prompt = min(16, context // 2)
    tokens = np.zeros((1, context), "int32")
    tokens[0, :prompt] = data.validation[:prompt]
    known = (np.arange(context) < prompt).astype("int32")[None]
    output = model.generate(
        {"token_ids": tokens, "padding_mask": known}, stop_token_ids=None
    )
    text = data.tokenizer.decode(
        output["token_ids"][0].tolist(), skip_special_tokens=False
    )
    print(f"\nText from {run.checkpoint} (the first {prompt} tokens given):\n")
    print("\n".join(f"    {line}" for line in text.splitlines()))
