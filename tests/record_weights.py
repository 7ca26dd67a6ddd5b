"""Weights after 20 steps of each optimizer, before and after a change.

`record FILE.npz` writes them, `compare FILE.npz` holds the present ones
against a record. The gradients are a fixed formula of step, variable and
weights, so that no model is differentiated. It is for the moves of issue 44,
and goes with the last of them.
"""

import argparse
import os
import pathlib
import sys
import time

# As pytest has it, for `experiments`.
sys.path.append(str(pathlib.Path(__file__).resolve().parents[1]))
os.environ.setdefault("KERAS_BACKEND", "torch")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras  # noqa: E402
import keras_hub  # noqa: E402
import numpy as np  # noqa: E402

from helpers.baselines import BASELINES  # noqa: E402
from helpers.variables import Steps  # noqa: E402
from helpers.variables import to_arrays  # noqa: E402
from keras_lanton import AuxiliaryAdamW  # noqa: E402
from keras_lanton import Lanton  # noqa: E402
from keras_lanton import NewtonSchulz  # noqa: E402
from keras_lanton import NoiseAdaptiveRate  # noqa: E402
from keras_lanton import baselines  # noqa: E402

STEPS = 20
TOLERANCE = 1e-6  # ||new - old|| / ||old||
# Of a variable's RMS: an entry that differs by more had its sign flipped, or
# was rounded to another bfloat16.
FLIPPED = 1e-4
EVERY_STEP = {"interval": 2, "schedule": "interval"}


def gpt2():
    """Two blocks: matrices for one at a time, and for the Gram form."""
    return keras_hub.models.GPT2Backbone(
        vocabulary_size=96,
        num_layers=2,
        num_heads=4,
        hidden_dim=64,
        intermediate_dim=192,
        max_sequence_length=24,
    )


def cnn():
    """Convolutions, one of them in groups, batch norm and a head."""
    return keras.Sequential(
        [
            keras.Input((8, 8, 3)),
            keras.layers.Conv2D(12, 3, name="first"),
            keras.layers.BatchNormalization(name="norm"),
            keras.layers.Conv2D(24, 3, groups=3, name="groups"),
            keras.layers.Conv2DTranspose(8, 3, name="back"),
            keras.layers.GlobalAveragePooling2D(),
            keras.layers.Dense(10, name="classes"),
        ]
    )


def lstm():
    """A table, gates, and a head over the vocabulary."""
    return keras.Sequential(
        [
            keras.Input((6,), dtype="int32"),
            keras.layers.Embedding(40, 20, name="tokens"),
            keras.layers.LSTM(
                28,
                return_sequences=True,
                recurrent_initializer="zeros",  # no QR in bfloat16
                name="lstm",
            ),
            keras.layers.Dense(40, name="head"),
        ]
    )


MODELS = {"gpt2": gpt2, "cnn": cnn, "lstm": lstm}
PAPER_NOISE = {
    "alpha": 0.3,
    "within_matrices": False,
    "alpha_unit": "group_noise",
    "group_reduction": "max",
}


def noise(**options):
    return {"noise": NoiseAdaptiveRate(**{"interval": 4, **options})}


def paper_noise(**options):
    return noise(**{**PAPER_NOISE, **options})


SCION = baselines.Scion
CASES = {
    "lanton": lambda: Lanton(),
    "paper": lambda: Lanton.paper(),
    "without_noise": lambda: Lanton(noise=None),
    "fine_tuning": lambda: Lanton.for_fine_tuning(),
    "paper_without_noise": lambda: Lanton.paper(noise=None),
    **{
        name.lower(): make
        for name, make in BASELINES.items()
        if name != "Gluon"
    },
    "gluon": lambda: baselines.Gluon(),
    "gluon_radii": lambda: baselines.Gluon(
        radii={"kernel": 2.0}, smoothness={"kernel": [0.1, 2.0]}
    ),
    **{
        f"scion_{name}": lambda name=name: SCION(embedding_norm=name)
        for name in ("col", "row")
    },
}
VARIANTS = {
    **{
        f"scion_{name}_plain": lambda name=name: SCION(
            embedding_norm=name, embedding_normalized=False, constrained=False
        )
        for name in ("sign", "col", "row")
    },
    **{
        f"scion_{name}_noise": lambda name=name: SCION(
            embedding_norm=name, **paper_noise(), vector_norm="sign"
        )
        for name in ("col", "row")
    },
    "muon_noise": lambda: baselines.Muon(**noise()),
    "dmuon_noise": lambda: baselines.DMuon(**noise(), nesterov=False),
    "adamuon_noise": lambda: baselines.AdaMuon(**paper_noise()),
    "gluon_noise": lambda: baselines.Gluon(
        smoothness={"": [0.1, 2.0]}, **paper_noise()
    ),
    **{
        f"paper_{name}": lambda name=name: Lanton.paper(
            **paper_noise(estimator=name)
        )
        for name in ("frobenius", "lanczos", "newton_schulz", "svd")
    },
    "paper_randomized_svd": lambda: Lanton.paper(
        **paper_noise(estimator="randomized_svd", rank=3)
    ),
    "paper_sign": lambda: Lanton.paper(vector_norm="sign", vector_scale=0.01),
    "paper_absolute": lambda: Lanton.paper(
        **paper_noise(alpha_unit="absolute", alpha=2.0)
    ),
    "paper_signal": lambda: Lanton.paper(**paper_noise(alpha_unit="signal")),
    "paper_mean": lambda: Lanton.paper(**paper_noise(group_reduction="mean")),
    "paper_within": lambda: Lanton.paper(**paper_noise(within_matrices=True)),
    "paper_operator": lambda: Lanton.paper(step_scale="operator"),
    "paper_printed": lambda: Lanton.paper(**paper_noise(**EVERY_STEP)),
    "alpha_none": lambda: Lanton(**noise(alpha=None)),
    "group_noise": lambda: Lanton(**noise(alpha_unit="group_noise")),
    "absolute": lambda: Lanton(**noise(alpha_unit="absolute")),
    "max": lambda: Lanton(**noise(group_reduction="max")),
    "lanczos": lambda: Lanton(**noise(estimator="lanczos")),
    "operator": lambda: Lanton(step_scale="operator"),
    "rms_matched": lambda: Lanton(step_scale="rms_matched", hidden_scale=0.3),
    "momentum": lambda: Lanton(**noise(reference="momentum")),
    "independent": lambda: Lanton(
        **noise(reference="independent_gradient"),
        gradient_accumulation_steps=2,
    ),
    "interval": lambda: Lanton(**noise(**EVERY_STEP)),
    "bfloat16_kept": lambda: Lanton(
        **noise(previous_gradient_dtype="bfloat16")
    ),
    "all_by_lmo": lambda: Lanton(auxiliary_adamw=None, **noise()),
    "all_by_sign": lambda: Lanton(
        auxiliary_adamw=None, vector_norm="sign", vector_scale=0.01, **noise()
    ),
    "adamw_of_tables": lambda: Lanton(
        auxiliary_adamw=AuxiliaryAdamW(
            roles=("embedding",),
            lr_ratio=0.3,
            weight_decay=0.02,
            epsilon_before_debiasing=True,
        )
    ),
    "from_adamw": lambda: Lanton.from_adamw(
        keras.optimizers.AdamW(1e-3, weight_decay=0.1, beta_2=0.97)
    ),
    "from_muon": lambda: Lanton.from_muon(baselines.DMuon(2e-3)),
    "no_bias_correction": lambda: Lanton(bias_correction=False),
    "no_nesterov": lambda: Lanton(nesterov=False),
    "polar_express": lambda: Lanton(
        newton_schulz=NewtonSchulz(steps=6, coefficients="polar_express")
    ),
    "multipliers": lambda: Lanton(rate_multipliers={"kernel": 0.3}),
    "cautious": lambda: Lanton(cautious_weight_decay=True),
    "excluded": lambda: Lanton(weight_decay_exclude=["bias", "norm"]),
    "int8": lambda: Lanton(momentum_dtype="int8"),
    "bfloat16_momentum": lambda: Lanton(momentum_dtype="bfloat16"),
    "bfloat16": lambda: Lanton(),
    "stochastic": lambda: Lanton(rounding="stochastic"),
}
IN_BFLOAT16 = ("bfloat16", "stochastic")
ON_GPT2 = ("lanton", "paper", "muon", "adamuon", "scion_col")


def all_runs():
    """Pairs of a model and a case; variants are not on every model.

    TensorFlow traces a GPT-2 for half a minute, so it has few of them.
    """
    slow = keras.backend.backend() == "tensorflow"
    for case in CASES:
        for model in MODELS:
            if not slow or model != "gpt2" or case in ON_GPT2:
                yield model, case
    for case in VARIANTS:
        for model in ("lstm",) if slow else ("gpt2", "lstm"):
            yield model, case


def weights_of(model_name, case):
    """The variables' paths, and their weights after the steps."""
    keras.backend.clear_session()
    policy = "bfloat16" if case in IN_BFLOAT16 else "float32"
    keras.config.set_dtype_policy(policy)
    model = MODELS[model_name]()
    keras.config.set_dtype_policy("float32")
    variables = model.trainable_variables
    rng = np.random.default_rng(1)
    for variable in variables:
        variable.assign(0.1 * rng.standard_normal(variable.shape))
    drifts = [rng.standard_normal(v.shape) for v in variables]
    scales = 10.0 ** rng.uniform(-3.0, 0.0, len(variables))
    optimizer = {**CASES, **VARIANTS}[case]()
    optimizer.build(variables)
    step = Steps(optimizer, variables)
    for t in range(STEPS):
        rng = np.random.default_rng([t, 7])
        gradients = []
        for i, (w, d, s) in enumerate(
            zip(to_arrays(variables), drifts, scales, strict=True)
        ):
            g = 0.5 * d + rng.standard_normal(d.shape) + 0.3 * w
            if t == 5 and i in (2, 5):  # these rest for a step
                g = np.zeros_like(g)
            dtype = keras.backend.standardize_dtype(variables[i].dtype)
            gradients.append(keras.ops.convert_to_tensor(s * g, dtype))
        step(gradients)
    return [v.path for v in variables], [
        one.astype("float32") for one in to_arrays(variables)
    ]


def record(path, only):
    found = {}
    start = time.time()
    for model, case in all_runs():
        if (only and case not in only) or case not in {**CASES, **VARIANTS}:
            continue
        names, weights = weights_of(model, case)
        for i, (name, one) in enumerate(zip(names, weights, strict=True)):
            found[f"{model}|{case}|{i}|{name}"] = one
        print(f"{time.time() - start:6.0f} s {model} {case}", flush=True)
    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    np.savez_compressed(path, **found)


def difference(new, old):
    """||new - old|| / ||old|| without flips, entries beyond 1e-6, flips."""
    rms = np.sqrt(np.mean(old.astype("float64") ** 2)) or 1.0
    off = np.abs(new.astype("float64") - old)
    flipped = ~(off <= FLIPPED * rms)
    rest = np.where(flipped, 0.0, off)
    return (
        float(np.linalg.norm(rest) / (rms * old.size**0.5)),
        int(np.sum(off > 1e-6 * rms)),
        int(np.sum(flipped)),
    )


def compare(path, only):
    """1 if a variable differs: beyond the tolerance, or in more than flips."""
    old = np.load(path)
    by_run = {}
    for key in old.files:
        model, case, *_ = key.split("|")
        by_run.setdefault((model, case), []).append(key)
    failed = False
    for (model, case), keys in by_run.items():
        if (only and case not in only) or case not in {**CASES, **VARIANTS}:
            continue
        _, weights = weights_of(model, case)
        rows = [
            difference(new, old[key])
            for new, key in zip(weights, keys, strict=True)
        ]
        worst = max(row[0] for row in rows)
        size = sum(old[key].size for key in keys)
        flips = sum(row[2] for row in rows)
        bad = worst > TOLERANCE or flips > 1e-3 * size
        failed = failed or bad
        print(
            f"{model:5} {case:24} {worst:9.1e}  beyond 1e-6 of the RMS: "
            f"{sum(row[1] for row in rows):6d} of {size}  flipped: {flips}"
            f"{'  DIFFERS' if bad else ''}",
            flush=True,
        )
    return int(failed)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("record", "compare"))
    parser.add_argument("file")
    parser.add_argument("cases", nargs="*")
    given = parser.parse_args()
    if given.what == "record":
        record(given.file, given.cases)
    else:
        sys.exit(compare(given.file, given.cases))
