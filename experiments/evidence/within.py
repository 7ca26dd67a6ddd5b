"""Noise inside a matrix: its rows, columns or entries in units of their own.

The sample is G_t - B_{t-1}, as in the literature's variance-adapted Muons; its
mean square V is kept by entry, or factored by row and column as in Adafactor.
"""

import dataclasses
import typing

import keras
from keras import ops

from keras_lanton import Lanton
from keras_lanton.core.matrices import from_matrices
from keras_lanton.core.matrices import to_matrices
from keras_lanton.core.norms import Sign
from keras_lanton.optimizer.direction import Direction
from keras_lanton.optimizer.state import Buffer

SMALLEST = 1e-12  # of a standard deviation


@dataclasses.dataclass(frozen=True)
class Bounded(Sign):
    """`Sign`, for what is bounded by 1 already."""

    def lmo(self, B, noise=None):
        """A copy of B."""
        return 1.0 * ops.cast(B, "float32")


@dataclasses.dataclass(frozen=True)
class Inside:
    """What is done inside the matrices of a role.

    Args:
        moments: `"entries"`, `"factored"` (rows times columns), `"inputs"` or
            `"outputs"` (one for each input or output of the layer).
        place: `"before"`: M / V^power goes to the LMO; `"after"`: O / V^power,
            scaled to the norm of O; `"soft"`: M / sqrt(M^2 + power V) in the
            place of sign(M); `"floored"`: M / sqrt(power mean(M^2) + V).
        power: See above.
        of: `"noise"`: V is the mean of (G_t - B_{t-1})^2; `"gradient"`: of
            G_t^2; `"update"`: of O_t^2, after the LMO as in NorMuon.
    """

    moments: str
    place: str
    power: float
    of: str = "noise"


AXES = {"inputs": (-1,), "outputs": (-2,)}


def mean_squares(D, moments):
    """Of `(batch, d_in, d_out)`: a list of tensors that are kept."""
    squares = ops.square(D)
    if moments == "entries":
        return [squares]
    if moments == "factored":
        return [ops.mean(squares, a, keepdims=True) for a in (-1, -2)]
    return [ops.mean(squares, AXES[moments], keepdims=True)]


def variance(kept):
    """V of what is kept, to be broadcast."""
    if len(kept) == 1:
        return kept[0]
    rows, columns = kept
    mean = ops.mean(rows, axis=-2, keepdims=True)
    return rows * columns / ops.where(mean > 0, mean, 1.0)


def shapes(spec, moments):
    """Shapes of what is kept."""
    one = (spec.batch, spec.d_in, spec.d_out)
    rows, columns = (*one[:2], 1), (one[0], 1, one[2])
    return {
        "entries": [one],
        "factored": [rows, columns],
        "inputs": [rows],
        "outputs": [columns],
    }[moments]


@keras.saving.register_keras_serializable(package="experiments")
class WithinMatrices(Lanton):
    """`Lanton` that measures noise inside matrices too.

    Args:
        *args: As `Lanton`.
        inside: `Inside` by role.
        inside_beta: Decay of V.
        inside_interval: Steps from one measurement to the next; above 1 the
            sample is (G_t - G_{t-1}) / sqrt(2).
        **kwargs: As `Lanton`.
    """

    def __init__(
        self, *args, inside, inside_beta=0.95, inside_interval=1, **kwargs
    ):
        super().__init__(*args, **kwargs)
        self.inside, self.inside_beta = inside, inside_beta
        self.inside_interval = inside_interval

    def make_rules(self, hidden):
        rules = super().make_rules(hidden)
        inside = self.inside.get("embedding")
        if inside is not None and inside.place == "soft":
            rules["embedding"] = dataclasses.replace(
                rules["embedding"], norm=Bounded()
            )
        return rules

    def make_direction(self, layout):
        return After(self)

    def lay_out_work(self, layout, variables):
        buffers = super().lay_out_work(layout, variables)
        kept = [
            Buffer(shape, "float32")
            for spec in layout.specs
            if spec.role in self.inside
            for shape in shapes(spec, self.inside[spec.role].moments)
        ]
        last = [
            Buffer(spec.shape, "float32")
            for spec in layout.specs
            if spec.role in self.inside and self.inside_interval > 1
        ]
        return {**buffers, "inside": kept, "inside_last": last}

    def step_(self, G, X, state, *, active, eta, t):
        specs = self._layout.specs
        b = self.inside_beta
        due = ops.mod(t, self.inside_interval) == 0
        count_due = t // self.inside_interval
        last = []
        kept, self.V, self.old, at = [], {}, {}, 0
        for i, spec in enumerate(specs):
            inside = self.inside.get(spec.role)
            if inside is None:
                continue
            count = len(shapes(spec, inside.moments))
            old = state["inside"][at : at + count]
            at += count
            if inside.of == "update":
                self.old[i] = (len(kept), old)
                kept.extend(old)
                continue
            D = ops.cast(G[i], "float32")
            if self.inside_interval > 1:
                D = (D - state["inside_last"][len(last)]) / 2**0.5
                last.append(ops.cast(G[i], "float32"))
            elif inside.of == "noise":
                D = D - ops.cast(state["momentum"][i], "float32")
            D = to_matrices(D, spec.view)
            new = mean_squares(D, inside.moments)
            new = [
                ops.where(due, b * o + (1 - b) * n, o)
                for o, n in zip(old, new, strict=True)
            ]
            kept.extend(new)
            unbiased = 1.0 - ops.power(b, ops.cast(count_due, "float32"))
            unbiased = ops.where(count_due > 0, unbiased, 1.0)
            self.V[i] = variance([v / unbiased for v in new])
        self.kept = kept
        X, new = super().step_(G, X, state, active=active, eta=eta, t=t)
        return X, {**new, "inside": self.kept, "inside_last": last}

    def _with_nesterov(self, stack, B, G, nesterov_weight):
        found = super()._with_nesterov(stack, B, G, nesterov_weight)
        inside = self.inside.get(stack.role)
        if inside is None or inside.place == "after":
            return found
        return {i: self.scaled(i, M, inside) for i, M in found.items()}

    def scaled(self, i, M, inside):
        """A variable's momentum in units of its noise."""
        view = self._layout.specs[i].view
        M = to_matrices(ops.cast(M, "float32"), view)
        V = self.V[i]
        if inside.place == "soft":
            size = ops.sqrt(ops.square(M) + inside.power * V)
            M = M / ops.maximum(size, SMALLEST)
        elif inside.place == "floored":
            floor = ops.mean(ops.square(M), axis=(-2, -1), keepdims=True)
            size = ops.sqrt(inside.power * floor + V)
            M = M / ops.maximum(size, SMALLEST)
        else:
            V = V / ops.maximum(
                ops.mean(V, axis=(-2, -1), keepdims=True), SMALLEST**2
            )
            M = M / (ops.power(V, inside.power) + 1e-4)
        return from_matrices(M, view)


@dataclasses.dataclass(frozen=True)
class After(Direction):
    """O / V^power, scaled to the norm of O."""

    owner: typing.Any

    def after(self, O, M, stack, matrices, weights, state):
        owner = self.owner
        inside = owner.inside.get(stack.role)
        if inside is None or inside.place != "after":
            return O, {}
        layout, b = owner._layout, owner.inside_beta
        if inside.of == "update":
            for i, o in zip(stack.indices, stack.scatter(O), strict=True):
                o = to_matrices(o, layout.specs[i].view)
                at, old = owner.old[i]
                new = mean_squares(o, inside.moments)
                pairs = zip(old, new, strict=True)
                new = [b * a + (1 - b) * n for a, n in pairs]
                owner.kept[at : at + len(new)] = new
                owner.V[i] = variance(new)
        V = stack.gather(
            {
                i: from_matrices(
                    ops.broadcast_to(
                        owner.V[i],
                        (
                            layout.specs[i].batch,
                            layout.specs[i].d_in,
                            layout.specs[i].d_out,
                        ),
                    ),
                    layout.specs[i].view,
                )
                for i in stack.indices
            }
        )
        axes = (-2, -1)
        V = V / ops.maximum(ops.mean(V, axes, keepdims=True), SMALLEST**2)
        new = O / (ops.power(V, inside.power) + 1e-4)
        size = ops.sqrt(ops.mean(ops.square(O), axes, keepdims=True))
        now = ops.sqrt(ops.mean(ops.square(new), axes, keepdims=True))
        return new * size / ops.maximum(now, SMALLEST), {}


def with_inside(options):
    """The options of a `WithinMatrices`, and the rest.

    Args:
        options: By name; "inside.ROLE" are the arguments of `Inside`;
            "inside.beta" is V's decay, "inside.interval" the steps between
            measurements.
    """
    given = {k: v for k, v in options.items() if k.startswith("inside.")}
    rest = {k: v for k, v in options.items() if k not in given}
    beta = given.pop("inside.beta", 0.95)
    interval = given.pop("inside.interval", 1)
    inside = {
        name.removeprefix("inside."): Inside(*value)
        for name, value in given.items()
    }
    return {
        **rest,
        "inside": inside,
        "inside_beta": beta,
        "inside_interval": interval,
    }
