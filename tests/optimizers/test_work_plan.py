"""Which matrices an optimizer works on together."""

import math

import pytest

from helpers.tiers import logic
from keras_lanton import Lanton
from keras_lanton import NewtonSchulz
from keras_lanton import NoiseAdaptiveRate
from keras_lanton.optimizers.work_plan import plan_work
from keras_lanton.variables.layout import VariableLayout
from keras_lanton.variables.spec import VariableSpec
from keras_lanton.variables.spec import assigned_spec


def llama(
    layers: int, width: int, inner: int, vocabulary: int
) -> list[VariableSpec]:
    """The kernels of a Llama with grouped queries, as KerasHub lays them."""
    made = [assigned_spec("embedding", (vocabulary, width), "embedding")]
    for i in range(layers):
        made += [
            assigned_spec(f"{i}/query", (width, 32, width // 32), "hidden", 0),
            assigned_spec(f"{i}/key", (width, 4, width // 32), "hidden", 0),
            assigned_spec(f"{i}/value", (width, 4, width // 32), "hidden", 0),
            assigned_spec(
                f"{i}/output", (32, width // 32, width), "hidden", (0, 1)
            ),
            assigned_spec(f"{i}/gate", (width, inner), "hidden"),
            assigned_spec(f"{i}/up", (width, inner), "hidden"),
            assigned_spec(f"{i}/down", (inner, width), "hidden"),
            assigned_spec(f"{i}/norm", (width,), "vector"),
        ]
    return [*made, assigned_spec("head", (width, vocabulary), "embedding", 0)]


@logic
@pytest.mark.parametrize("staggered", [True, False])
def test_a_billion_parameters_stay_within_the_cap(staggered: bool) -> None:
    specs = tuple(llama(22, 2048, 5632, 32000))
    count = len(specs)
    assert sum(math.prod(spec.shape) for spec in specs) > 1.09e9
    schedule = "staggered" if staggered else "interval"
    optimizer = Lanton(noise=NoiseAdaptiveRate(schedule=schedule))
    cap = NewtonSchulz().max_temporary_bytes
    plan = plan_work(
        VariableLayout(
            all_specs=specs,
            updated=tuple(range(count)),
            decayed=(True,) * count,
            rate_multipliers=(1.0,) * count,
        ),
        (),
        Lanton.paper().rules_by_role(),
        optimizer.noise,
        max_bytes=cap,
        devices=None,
    )
    assert plan.temporary_bytes() <= cap
    assert sum(len(work.stack) for work in plan.stacks) == count
