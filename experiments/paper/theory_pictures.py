"""The picture and the table of theory.py."""

import numpy as np

from experiments.styles import STYLES

METHODS = ("adaptive", "fixed")
# Lanton's, and D-Muon's, whose rates are fixed.
COLORS = {
    "adaptive": STYLES["lanton"][1],
    "fixed": STYLES["d_muon"][1],
}
GREY = "#666666"


def plot(result, path):
    """One panel for H, one for the rate, one for the noise."""
    import matplotlib

    matplotlib.use("agg")  # draws to a file, needs no display
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(
        1, 3, figsize=(15, 4.5), layout="constrained"
    )
    plot_lemma(axes[0], result["lemmas"])
    plot_rate(axes[1], result["rate"])
    plot_noise(axes[2], result["noise"])
    for axis in axes[1:]:  # the first has no line with a label
        axis.legend()
    for axis in axes:
        axis.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150)
    pyplot.close(figure)


def plot_lemma(axis, lemmas):
    for one in lemmas["noisiest_layer"]:
        t = range(1, len(one) + 1)
        axis.plot(t, one, color=COLORS["adaptive"], lw=0.7)
    t = (lemmas["t0"], len(one))
    label = f"promised with probability {lemmas['promised']:g}"
    axis.fill_between(t, 0.5, 1.5, color="#56B4E9", alpha=0.25)
    axis.annotate(
        label,
        (lemmas["t0"], 1.45),
        xytext=(3, 0),
        textcoords="offset points",
        verticalalignment="top",
    )
    axis.set(
        title="H of the noisiest layer (line: one run)",
        xlabel="step",
        ylabel="H / ((1 - b2^t) M)",
        ylim=(0.4, 1.8),
    )


def plot_rate(axis, rate):
    T = np.array(rate["T"])
    for method in METHODS:
        mean = np.mean(rate[method]["norms"], axis=0)
        label = f"{method}\nT^{rate[method]['exponent']:.2f}"
        axis.loglog(T, mean, "o-", color=COLORS[method], label=label)
    line = 0.9 * mean[0] * (T / T[0]) ** rate["predicted"]
    axis.loglog(T, line, "--", color=GREY, label="predicted\nT^-0.25")
    axis.set_xticks(T, [str(one) for one in T])
    axis.set_yticks(*[(2, 3, 4, 5, 6, 8, 10)] * 2)
    axis.minorticks_off()
    axis.set_ylim(0.8 * line[-1], 1.3 * mean[0])
    axis.set(
        title="Average dual norm of the gradient",
        xlabel="steps T",
        ylabel="mean of sum over layers",
    )


def plot_noise(axis, noise):
    x = noise["noises"]
    styles = {
        "own": ("o-", "#332288", "each at its\nown setting"),
        "same": ("^-", "#AA4499", "both at that\nof adaptive"),
        "tuned": ("s-", "#117733", "each with its\nrate tuned"),
        "predicted": ("--", GREY, "predicted from\nthe bounds"),
    }
    for key, (style, color, label) in styles.items():
        axis.plot(x, noise[key], style, color=color, label=label)
    axis.set_xscale("log", base=2)
    axis.set_xticks(x, [str(one) for one in x])
    axis.axhline(1, color=GREY, lw=0.5)
    axis.set(
        title="Average norm, fixed over adaptive",
        xlabel="noise of one layer / noise of the others",
        ylabel="norm with fixed rates / norm with adaptive ones",
    )


def table(result):
    """The results as text."""
    lemmas, rate, noise = (result[k] for k in ("lemmas", "rate", "noise"))
    lines = [f"{lemmas['trials']} runs, from step {lemmas['t0']} on"]
    names = {
        "H": "H between M/2 and 3M/2",
        "ratio": "ratio within its bounds",
        "H_surely": "H below 4 S^2",
        "ratio_surely": "ratio within its sure bounds",
    }
    for key, name in names.items():
        found = lemmas["frequency"][key]
        promised = 1.0 if key.endswith("surely") else lemmas["promised"]
        verdict = "held" if found >= promised else "DID NOT HOLD"
        lines.append(f"  {name:30}{found:6.2f} (>= {promised:.2f})  {verdict}")
    worst = max(lemmas["largest_deviations"])
    lines.append(f"  {'largest |H / E H - 1|':30}{worst:6.2f} (<= 0.50)")
    lines.append("exponent of the average dual norm against T (-0.25)")
    for method in METHODS:
        found = rate[method]["exponent"]
        near = "agrees" if abs(found + 0.25) < 0.05 else "DIFFERS"
        lines.append(f"  {method:30}{found:6.2f}  {near}")
    lines.append("average norm without adaptation over that with it")
    lines.append("  noise of one layer  predicted    own   same  tuned")
    keys = ("noises", "predicted", "own", "same", "tuned")
    for row in zip(*[noise[key] for key in keys], strict=True):
        lines.append("  {:18g}{:11.2f}{:7.2f}{:7.2f}{:7.2f}".format(*row))
    predicted = noise["predicted"][-1]
    for key in keys[2:]:
        near = abs(noise[key][-1] / predicted - 1) < 0.2
        lines.append(
            f"  {key}: {'agrees within 20 %' if near else 'DIFFERS'} "
            "at the largest noise"
        )
    return "\n".join(lines)
