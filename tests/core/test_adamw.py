"""AdamW as a part of Lanton is AdamW."""

import keras
import numpy as np
import pytest
from keras import ops

from helpers.baselines import ETA
from helpers.baselines import run
from helpers.tiers import logic
from helpers.variables import EXPECTED
from helpers.variables import FEW
from helpers.variables import Steps
from helpers.variables import deviations
from helpers.variables import make_gradients
from helpers.variables import make_variables
from helpers.variables import to_arrays
from keras_lanton import Lanton
from keras_lanton.baselines import AdaMuon
from keras_lanton.baselines import DMuon
from keras_lanton.baselines import Muon


@pytest.mark.parametrize("role", ["embedding", "vector"])
def test_adamw_in_lanton_is_keras_adamw(role):
    """That one's epsilon has an effect on neither, at gradients of size 1."""
    paths = [path for path in FEW if EXPECTED[path].role == role]
    gradients = make_gradients(6, paths)
    found, start = run(
        Lanton,
        gradients,
        paths,
        adamw_roles=[role],
        adam_lr_ratio=0.5,
        adam_beta_1=0.8,
        adam_beta_2=0.97,
        epsilon=1e-12,
        weight_decay=0.1,
    )
    variables = make_variables(paths)
    adamw = keras.optimizers.AdamW(
        0.5 * ETA, beta_1=0.8, beta_2=0.97, epsilon=1e-12, weight_decay=0.1
    )
    adamw.build(variables)
    steps = Steps(adamw, variables)
    for one in gradients:
        steps(one)
    off = deviations(found, to_arrays(variables), start)
    assert max(off) < 1e-5, off


# -- One huge gradient -------------------------------------------------------
SIZES = [1e18, 1e20, 1e30, 3.3e38]  # bfloat16 has no 3.4e38
MAKERS = {
    "lanton": lambda: Lanton(1e-2, weight_decay=None),
    "for_fine_tuning": lambda: Lanton.for_fine_tuning(1e-2),
    "Muon": lambda: Muon(1e-2),
    "DMuon": lambda: DMuon(1e-2, weight_decay=None),
    "AdaMuon": lambda: AdaMuon(1e-2, weight_decay=None),
}


def moved_by_adamw(gradients, rate, part):
    """The distance that AdamW without decay moves a weight, in float64."""
    m = v = moved = 0.0
    for t, g in enumerate(gradients, start=1):
        m = part.beta_1 * m + (1.0 - part.beta_1) * g
        v = part.beta_2 * v + (1.0 - part.beta_2) * g**2
        m_hat, bias = m / (1.0 - part.beta_1**t), 1.0 - part.beta_2**t
        root = np.sqrt(v / bias) + part.epsilon
        if part.epsilon_before_debiasing:
            root = (np.sqrt(v) + part.epsilon) / np.sqrt(bias)
        moved -= rate * part.lr_ratio * m_hat / root
    return moved


def assert_moved_by_adamw(optimizer, variables, gradients, dtype="float32"):
    """The last of the variables, by these gradients."""
    optimizer.build(variables)
    random, bias = np.random.default_rng(0), variables[-1]
    for g in gradients:
        given = [random.normal(size=v.shape) for v in variables[:-1]]
        given.append(np.full(bias.shape, g))
        optimizer.apply([ops.convert_to_tensor(x, dtype) for x in given])
    seen = [float(ops.convert_to_tensor(g, dtype)) for g in gradients]
    wanted = moved_by_adamw(seen, 1e-2, optimizer.auxiliary_adamw)
    found = ops.convert_to_numpy(ops.cast(bias, "float32"))
    # The weights and the momentum themselves have 8 bits in bfloat16.
    tolerance = 1e-5 if dtype == "float32" else 0.03
    np.testing.assert_allclose(found, wanted, rtol=tolerance)


@logic
@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_one_huge_gradient(name, size, dtype):
    variables = [
        keras.Variable(np.ones((4, 3), "float32"), dtype=dtype, name="w"),
        keras.Variable(np.zeros(3, "float32"), dtype=dtype, name="bias"),
    ]
    gradients = [0.1] * 5 + [size] + [0.1, -0.2, 0.3]
    assert_moved_by_adamw(MAKERS[name](), variables, gradients, dtype)


@logic
@pytest.mark.parametrize("sizes", [(1e25, 3e38, 1e30), (3e38, -3e38, 3e38)])
def test_several_huge_gradients(sizes):
    bias = keras.Variable(np.zeros(2, "float32"), name="bias")
    gradients = [0.1, 0.1, *sizes, 0.2, -0.1]
    assert_moved_by_adamw(MAKERS["lanton"](), [bias], gradients)
