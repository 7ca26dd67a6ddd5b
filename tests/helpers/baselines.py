"""Runs of the compared optimizers on the oracle's variables."""

import numpy as np

from baseline_oracles import BlockwiseAdamWOracle
from experiments.baselines import MULTIPLIERS
from experiments.baselines import BlockwiseAdamW
from experiments.baselines import Lamb
from experiments.baselines import Mars
from helpers.optimizers import assign_roles
from helpers.optimizers import make_optimizer
from helpers.variables import BY_HAND
from helpers.variables import EXPECTED
from helpers.variables import FEW
from helpers.variables import Steps
from helpers.variables import deviations
from helpers.variables import make_gradients
from helpers.variables import make_variables
from helpers.variables import to_arrays
from keras_lanton import Lanton
from keras_lanton import NoiseAdaptiveRate
from keras_lanton import baselines
from keras_lanton.roles.block_kinds import block_of
from keras_lanton.roles.spec import assigned_spec

ETA = 0.01


# As in test_lanton.py: of the distance moved.
TOLERANCE = 1e-4
NOISE = {
    "noise_interval": 1,
    "alpha": 0.2,
    "alpha_unit": "group_noise",
    "within_matrices": False,
    "group_reduction": "mean",
}
NOISE_PART = NoiseAdaptiveRate(
    alpha=0.2, alpha_unit="group_noise", within_matrices=False, interval=1
)
BASELINES = {name: getattr(baselines, name) for name in baselines.__all__}
CLASSES = list(BASELINES.values())
# Plain Keras optimizers, of the experiments alone.
PLAIN = {"Lamb": Lamb, "Mars": Mars, "BlockwiseAdamW": BlockwiseAdamW}


def make(cls, variables, paths=FEW, **options):
    """A built optimizer of options by flat names, with roles assigned."""
    plain = cls in PLAIN.values()
    optimizer = Lanton() if plain else make_optimizer(cls, ETA, **options)
    layers = {path: EXPECTED[path] for path in paths}
    assign_roles(optimizer, layers, variables, BY_HAND)
    optimizer.build(variables)
    if not plain:
        return optimizer
    if cls is not Lamb:
        options["roles"] = optimizer.get_config()["roles"]
    optimizer = cls(ETA, **options)
    optimizer.build(variables)
    return optimizer


def run(cls, gradients, paths=FEW, **options):
    """The weights that an optimizer reaches, and where it started."""
    variables = make_variables(paths)
    start = to_arrays(variables)
    steps = Steps(make(cls, variables, paths, **options), variables)
    for one in gradients:
        steps(one)
    return to_arrays(variables), start


def some_gradients(steps=5, paths=FEW):
    """Also a step without a gradient of the first and the last layer."""
    gradients = make_gradients(steps, paths)
    for i in (0, -1):
        gradients[2][i] = np.zeros_like(gradients[2][i])
    return gradients


RATIOS = {
    i: MULTIPLIERS[
        block_of(
            assigned_spec(
                path,
                EXPECTED[path].shape,
                EXPECTED[path].role,
                EXPECTED[path].input_axes or None,
                EXPECTED[path].output_axes or None,
            )
            if EXPECTED[path].blocks == 1
            else assigned_spec(path, EXPECTED[path].shape, "hidden", 0, 1)
        )
    ]
    for i, path in enumerate(FEW)
}
LATE = {
    "minimum_learning_rate": 0.002,
    "maximum_learning_rate": 0.02,
    "warmup_steps": 2,
}


def assert_equal(found, wanted, start, tolerance=TOLERANCE):
    assert max(deviations(found, wanted, start)) < tolerance


def adamw(gradients, paths=FEW, **options):
    """The oracle's AdamW: block ratios of 1."""
    start = weights = to_arrays(make_variables(paths))
    oracle = BlockwiseAdamWOracle(
        [EXPECTED[path] for path in paths],
        ratios=dict.fromkeys(range(len(paths)), 1.0),
        **options,
    )
    for one in gradients:
        weights = oracle.step(one, weights, ETA)
    return weights, start
