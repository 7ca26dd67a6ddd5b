"""The experiments behind the documents.

    python -m experiments               runs that docs/results.md is missing
    python -m experiments.report        that page, or any table of the runs
    python -m experiments.paper         the paper's experiments
    python -m experiments.paper.report  docs/paper.md from their results
    python -m experiments.pretraining   GPT-2 and Llama: presets, sweeps, texts
    python -m experiments.images        the CNN: CIFAR-100, more optimizers

Run them in the root of the repository. A run of the first four is a record of
`run.Run`: `sweeps`, `tasks` and `paper.sweeps` have the settings, `language`
and `images` train them, `tables` tells what came out.
"""
