"""The experiments behind the documents: sweeps, sizes, corpora, the paper.

    python -m experiments.pretraining   GPT-2 and Llama: presets, sweeps, texts
    python -m experiments.images        the CNN: CIFAR-100, more optimizers
    python -m experiments.paper         the paper's experiments
    python -m experiments.paper.report  docs/paper.md from their results

Run them in the root of the repository, with KERAS_BACKEND set.
"""
