"""Pretrain a GPT-2 from random weights with LANTON and, beside it, AdamW.

Claim: both loss curves fall, and LANTON's validation loss ends below
AdamW's, each optimizer at the best learning rate of the same sweep.

    python examples/gpt2_pretraining.py

needs no download: it reads the Python standard library's own source text
(about 12 MB), learns a byte-pair vocabulary on it and trains a four-layer
GPT-2 for 200 steps with each optimizer.

    hardware     CPU, 2 cores, JAX
    time         some 3 minutes in all, tokenizer and text sample included
    validation   LANTON 4.059, AdamW 5.901 after 200 steps, seed 42

The paper's runs (context 512, batch 16, one epoch of OpenWebText-100k) need
a GPU and a download:

    python examples/gpt2_pretraining.py --preset gpt2_small
    python examples/gpt2_pretraining.py --preset gpt2_medium

An interrupted run goes on where it stopped, and ends with the same weights,
when the command is given again with --resume. `--sweep` repeats the choice
of the learning rates, `--text FILE ...` trains on a text of your own, and
`--help` lists the rest. `pip install ".[jax,examples]"` brings what it needs.
"""

import dataclasses

import pretraining

PRESETS = {
    "demo": pretraining.Preset(experiment="gpt2_small", **pretraining.DEMO),
    # 16 x 512 = 8192 tokens a step. The documents are packed end to end; the
    # paper's 46 million tokens an epoch are one block a document, 5625 steps.
    "gpt2_small": pretraining.Preset(
        **pretraining.paper_settings("gpt2_small"),
        layers=12,
        width=768,
        dataset="openwebtext-100k",
        vocabulary=None,
        steps=None,
        dropout=0.1,
        save_every=250,
        validation_blocks=1024,
        sweep_steps=1000,
        sweep={
            **dict.fromkeys(pretraining.OPTIMIZERS, (3e-4, 1e-3, 3e-3, 5e-3)),
            "lanton": (1e-3, 2.5e-3, 5e-3, 1e-2),
            "lanton_paper": (1e-3, 2.5e-3, 5e-3, 1e-2),
            "adamw": (1e-4, 3e-4, 6e-4, 1e-3),
        },
    ),
}
PRESETS["gpt2_medium"] = dataclasses.replace(
    PRESETS["gpt2_small"],
    **pretraining.paper_settings("gpt2_medium"),
    layers=24,
    width=1024,
)


def make_model(preset, vocabulary):
    """A GPT-2 with random weights; its head is the embedding, transposed."""
    import keras_hub

    backbone = keras_hub.models.GPT2Backbone(
        vocabulary_size=vocabulary,
        num_layers=preset.layers,
        num_heads=preset.heads,
        hidden_dim=preset.width,
        intermediate_dim=4 * preset.width,
        dropout=preset.dropout,
        max_sequence_length=preset.context,
        dtype=preset.dtype_policy,
    )
    return keras_hub.models.GPT2CausalLM(backbone=backbone, preprocessor=None)


EXAMPLE = pretraining.Example(
    name="gpt2",
    description="Pretrain a GPT-2 with LANTON and, beside it, AdamW.",
    presets=PRESETS,
    make_model=make_model,
)


def main(argv=None):
    pretraining.main(EXAMPLE, argv)


if __name__ == "__main__":
    main()
