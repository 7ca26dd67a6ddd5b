"""How often a step waits for a GPU, counted without one."""

import keras
import numpy as np
import pytest

from helpers.variables import deviations
from helpers.variables import make_gradients
from helpers.variables import make_variables
from helpers.variables import to_arrays
from helpers.variables import to_tensors
from keras_lanton import AuxiliaryAdamW
from keras_lanton import Lanton
from keras_lanton import NewtonSchulz
from keras_lanton import NoiseAdaptiveRate
from keras_lanton.backends import backend
from keras_lanton.baselines import DMuon
from keras_lanton.baselines import Scion

if keras.backend.backend() != "torch":
    pytest.skip("JAX and TensorFlow compile steps", allow_module_level=True)

import torch

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


@pytest.mark.parametrize("name", ["default", "momentum", "no noise", "adamw"])
@pytest.mark.parametrize("scale", [1e-20, 1.0, 1e20])
def test_a_gpu_computes_what_a_cpu_does(name, scale, monkeypatch):
    """Its operations are others, in fewer passes.

    But for the paper's estimate of the noise, which is another on a GPU.
    """
    gradients = [[scale * g for g in one] for one in make_gradients(12)]

    def weights():
        variables = make_variables()
        optimizer = MAKERS[name]()
        optimizer.newton_schulz = NewtonSchulz(dtype="float32")
        optimizer.build(variables)
        for one in gradients:
            optimizer.apply(to_tensors(one), variables)
        return to_arrays(variables)

    start = to_arrays(make_variables())
    wanted = weights()
    monkeypatch.setattr(backend, "device", lambda: "gpu")
    backend._constants.clear()
    with PretendedGpu(), keras.device("cuda:0"):
        found = weights()
    backend._constants.clear()
    # Observed at most 2e-6.
    assert max(deviations(found, wanted, start)) < 1e-5


def test_the_stand_in_counts_and_refuses():
    gpu = PretendedGpu()
    with gpu:
        there = torch.ones(3, device="cuda") + 1.0
        here = torch.ones(3)
        assert (there.device.type, here.device.type) == ("cuda", "cpu")
        assert there.is_cuda
        assert not here.is_cuda
        with pytest.raises(RuntimeError, match="on the CPU"):
            there + here
        assert (there * torch.tensor(2.0)).device.type == "cuda"
        assert not gpu.waits
        reads = (
            bool((there > 0).all()),
            there.tolist(),
            there[0].item(),
            there.cpu(),
            there.to("cpu"),
            torch.nonzero(there),
        )
        assert len(gpu.waits) == len(reads)
        gpu.waits.clear()
        copies = (
            torch.tensor(1.0, device="cuda"),
            torch.as_tensor(np.ones(3), device="cuda"),
            here.to("cuda"),
            there.copy_(here),
            torch.where(there > 0, there, 1.0),
        )
        assert len(gpu.waits) == len(copies)
        here.pin_memory().to("cuda", non_blocking=True)
        assert len(gpu.waits) == len(copies)
