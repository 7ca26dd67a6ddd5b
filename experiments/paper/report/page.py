"""The page's sections, in order, and its text."""

from experiments.paper.report import ablations
from experiments.paper.report import comparisons
from experiments.paper.report import measurements
from experiments.paper.report import robustness

SECTIONS = {
    "losses": ("Training and validation loss", comparisons.losses),
    "by_layer": (
        "Against layer-wise and block-wise rates",
        comparisons.by_layer,
    ),
    "adamuon": ("Against AdaMuon", comparisons.adamuon),
    "running_time": ("Running time per step", comparisons.running_time),
    "base_rate": ("Robustness to the base learning rate", robustness.base_rate),
    "batch_size": ("Robustness to the batch size", robustness.batch_size),
    "sample_efficiency": ("Sample efficiency", robustness.sample_efficiency),
    "effective_rates": (
        "Effective learning rates",
        measurements.effective_rates,
    ),
    "noise": ("Noise heterogeneity", measurements.noise),
    "references": ("Option I against Option II", measurements.references),
    "cnn": ("The CNN", comparisons.cnn),
    "bounds": ("Theory", measurements.bounds),
    "defaults": ("What the defaults are made of", ablations.defaults),
    "width": ("Embeddings' steps by width", ablations.width),
}

HEAD = """# The paper's experiments

Hao et al., *Noise-Adaptive Layerwise Learning Rates*, arXiv 2510.14009, on a
small scale. This page is made by

```sh
make paper   # python -m experiments.paper, then experiments.paper.report
```

"Lanton" has this library's defaults with the paper's kind of noise, that
between matrices: `noise=NoiseAdaptiveRate(alpha_unit="group_noise",
within_matrices=False)`. It has `beta_1=0.9`, `step_scale="rms_matched"`,
`embedding_scale=200` and `bias_correction=False`, too. "Lanton, paper's
settings" is `Lanton.paper()`. [Evidence](evidence.md) has the noise within
matrices. {setting}
"""

CPU_SETTING = """Language models: four layers of width 64 (0.2 million
weights), 512 tokens of vocabulary, 250 steps of 16 x 64 tokens of the Python
standard library's source text; CNN: a narrow airbench94 on scikit-learn's
digits, 6 epochs. Each optimizer's learning rate is the best of four, factors of
2 apart, by the first seed's validation loss; "edge" marks the end of a grid.
Numbers are means and standard deviations of three seeds, which share initial
weights and batches between optimizers. This is little training of little
models: it shows what is so at this size, not at the paper's."""


def page(results, pictures):
    """The page's text; pictures are written on the way."""
    first = next(iter(results.values()))
    machine = first["machine"]
    versions = ", ".join(f"{k} {v}" for k, v in machine["versions"].items())
    setting = (
        CPU_SETTING if first["scale"] == "cpu" else "The printed settings."
    )
    parts = [HEAD.format(setting=setting)]
    parts.append(
        f"Machine: {machine['cores']} CPU cores ({machine['processor']}), "
        f"Python {machine['python']}, {versions}.\n"
    )
    for number, (name, (title, write)) in enumerate(SECTIONS.items(), 1):
        parts.append(f"## {number}. {title}\n")
        if name not in results:
            parts.append("Not run.\n")
            continue
        paragraphs = write(results[name]["result"], pictures)
        parts.append("\n\n".join(paragraphs) + "\n")
    return "\n".join(parts)
