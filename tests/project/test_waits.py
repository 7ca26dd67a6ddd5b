"""How often a step waits for a GPU, counted without one."""

import keras
import numpy as np
import pytest

from helpers.variables import make_gradients
from helpers.variables import make_variables
from helpers.variables import to_tensors
from keras_lanton import AuxiliaryAdamW
from keras_lanton import Lanton
from keras_lanton import NoiseAdaptiveRate
from keras_lanton.backends import backend
from keras_lanton.baselines import DMuon
from keras_lanton.baselines import Scion

if keras.backend.backend() != "torch":
    pytest.skip("JAX and TensorFlow compile steps", allow_module_level=True)

from helpers.pretended_gpu import PretendedGpu

MAKERS = {
    "default": Lanton,
    "paper": Lanton.paper,
    "momentum": lambda: Lanton(
        noise=NoiseAdaptiveRate(reference="momentum", interval=1)
    ),
    "no noise": lambda: Lanton(noise=None, nonfinite="propagate"),
    "adamw": lambda: Lanton(
        auxiliary_adamw=AuxiliaryAdamW(roles=("embedding", "vector")),
        cautious_weight_decay=True,
    ),
    "schedule": lambda: Lanton(
        # Those with a warm-up have a conditional of their own.
        keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.9)
    ),
    "d_muon": lambda: DMuon(0.01),
    "scion": lambda: Scion(0.01),
}


@pytest.mark.parametrize("name", MAKERS)
def test_a_step_waits_for_a_gpu_twice(name, monkeypatch):
    """To read what decides, and where Keras counts the iterations.

    Constants are copied to a GPU on the steps that first need them.
    """
    of_keras = {"schedule": 3}  # to compute the rate
    monkeypatch.setattr(backend, "device", lambda: "gpu")
    backend._constants.clear()
    gpu = PretendedGpu()
    with gpu, keras.device("cuda:0"):
        variables = make_variables()
        optimizer = MAKERS[name]()
        optimizer.build(variables)
        for step, gradients in enumerate(make_gradients(24)):
            if step == 15:  # which is skipped
                gradients[0][0, 0] = np.inf
            if step == 17:
                gradients[1][:] = 0.0
            tensors = to_tensors(gradients)
            gpu.waits.clear()
            optimizer.apply(tensors, variables)
            if step >= 12:
                most = 2 + of_keras.get(name, 0)
                assert 0 < len(gpu.waits) <= most, gpu.waits
        backend._constants.clear()
        assert all(gpu.is_on_gpu(v.value) for v in optimizer.variables)
