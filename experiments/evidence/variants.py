"""Other measures of noise than Algorithm 1's, to be tried against it.

`Variant` is a `NoiseAdaptiveRate` with more choices. What is measured is kept
in the place of sqrt(H); matrices of ratio 1 were not measured yet.
"""

import dataclasses

import keras
import numpy as np
from keras import ops

from keras_lanton import NoiseAdaptiveRate
from keras_lanton.core.noise import group_noise
from keras_lanton.core.noise import noise_factor
from keras_lanton.core.noise import update_noise
from keras_lanton.roles.block_kinds import block_of
from keras_lanton.settings import _chunk

SMALLEST = 1e-3  # of an alignment


@keras.saving.register_keras_serializable(package="experiments")
@dataclasses.dataclass(frozen=True)
class Variant(NoiseAdaptiveRate):
    """A noise-adaptive rate with another measure.

    Args:
        measure: `"noise"`: H as in line 7. `"signal"`: H over the squared
            dual norm of the momentum. `"alignment"`: -<G_t, LMO(B_{t-1})>
            over the dual norm of G_t, whose mean is kept. `"frozen"`: the
            ratios are `ratios`.
        power: Of a in line 9, or of the alignment.
        groups: What is compared: `"role"`, `"block"` (queries and keys, values
            and outputs, feed-forward, table, head) or `"all"` matrices.
        hold: Steps on which all ratios are 1.
        ratios: Pairs of paths and ratios.
    """

    measure: str = "noise"
    power: float = 0.5
    groups: str = "role"
    hold: int = 0
    ratios: tuple = ()

    def update(self, plan, G, B_last, state, *, active, t):
        ratio, new = super().update(plan, G, B_last, state, active=active, t=t)
        if self.hold:
            ratio = ops.where(t > self.hold, ratio, ops.ones_like(ratio))
        return ratio, new

    def frozen_ratios(self, layout):
        """The table's ratios; 1 where it has none."""
        table = dict(self.ratios)
        ratios = [
            table.get(layout.specs[i].path, 1.0)
            for i in layout.variable_of_matrix
        ]
        return ops.convert_to_tensor(np.array(ratios, "float32"))

    def _measure(self, group, k, chunk, G, B_last, state):
        given = (group, k, chunk, G, B_last, state)
        outputs = super()._measure(*given)
        if self.measure in ("noise", "frozen"):
            return outputs
        lines = outputs[group.size :]
        return ops.concatenate([self.unitless(*given), lines])

    def unitless(self, group, k, chunk, G, B_last, state):
        """What is measured in the place of the dual norm, `(size,)`."""
        B, norm = _chunk(group, chunk, B_last), group.norm
        if self.measure == "signal":
            D = self._sample(group, k, chunk, G, B_last, state)
            signal = norm.dual(B)
            return norm.dual(D) / ops.where(signal > 0, signal, 1.0)
        g = _chunk(group, chunk, G)
        O = norm.lmo(B)
        # Over the norm's own bound, which the dual norm is for Spectral only.
        earned = ops.sum(g * O, axis=(-2, -1))
        bound = ops.sum(g * norm.lmo(g), axis=(-2, -1))
        return earned / ops.where(bound > 0, bound, 1.0)

    def accumulate(self, plan, state, outputs, measured):
        if self.measure in ("noise", "frozen"):
            return super().accumulate(plan, state, outputs, measured)
        # Without a unit: as it is for A, it is for A^T.
        d = ops.take(outputs, plan.placement.columns)
        if self.measure == "signal":
            mean = update_noise(state["noise"], d, beta_2=self.beta_2)
        else:
            mean = self.beta_2 * state["noise"] + (1.0 - self.beta_2) * d
        new = super().accumulate(plan, state, outputs, measured)
        return {**new, "noise": ops.where(measured, mean, state["noise"])}

    def ratio(self, layout, noise, measurements):
        if self.measure == "frozen":
            return self.frozen_ratios(layout)
        known = measurements > 0
        if self.measure == "alignment":
            n = ops.cast(ops.maximum(measurements, 1), "float32")
            mean = noise / (1.0 - ops.power(self.beta_2, n))
            x = ops.power(ops.maximum(mean, SMALLEST), self.power)
        elif self.alpha is None:
            return super().ratio(layout, noise, measurements)
        else:
            noise = self.comparable_noise(noise, measurements)
            alpha = self.alpha
            masks = self.masks(layout)
            if self.alpha_unit == "group_noise":
                alpha = alpha * group_noise(noise, groups=masks)
            x = ops.power(noise_factor(noise, alpha=alpha), self.power)
        result = ops.ones_like(x)
        for mask in self.masks(layout):
            member = ops.logical_and(mask, known)
            count = ops.sum(ops.cast(member, "float32"))
            total = ops.sum(ops.where(member, x, 0.0))
            mean = total / ops.maximum(count, 1.0)
            scaled = x / ops.where(mean > 0, mean, 1.0)
            result = ops.where(member, scaled, result)
        return result

    def masks(self, layout):
        """One mask for each group, `(matrices,)` bool."""
        if self.groups == "role":
            return [ops.convert_to_tensor(mask) for mask in layout.role_masks]
        kinds = np.array([block_of(spec) for spec in layout.specs])
        if self.groups == "all":
            measured = np.any(np.array(layout.role_masks), axis=0)
            return [ops.convert_to_tensor(measured)]
        kinds = kinds[layout.variable_of_matrix]
        return [
            ops.convert_to_tensor(kinds == kind) for kind in np.unique(kinds)
        ]


def with_variant(options):
    """Options whose part `noise` is a `Variant`.

    Args:
        options: By name; all "noise.NAME" are arguments of `Variant`.
    """
    given = {
        name.removeprefix("noise."): value
        for name, value in options.items()
        if name.startswith("noise.")
    }
    if "ratios" in given:
        given["ratios"] = tuple(map(tuple, given["ratios"]))
    rest = {n: v for n, v in options.items() if not n.startswith("noise.")}
    return {**rest, "noise": Variant(**given)}
