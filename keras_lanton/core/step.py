"""Algorithm 1, lines 5 to 10, in their order, on the arrays of a plan."""

import dataclasses
import functools
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

from keras import ops

from keras_lanton.backends import backend
from keras_lanton.core.adamw import adamw_
from keras_lanton.core.adamw import debiasing
from keras_lanton.core.matrices import Stack
from keras_lanton.core.measuring import entry_noise
from keras_lanton.core.measuring import measure
from keras_lanton.core.measuring import noise_units
from keras_lanton.core.plan import Plan
from keras_lanton.core.plan import WorkStack
from keras_lanton.settings import AuxiliaryAdamW
from keras_lanton.settings import NoiseAdaptiveRate
from keras_lanton.types import State
from keras_lanton.types import Tensor

# New tensors of the state: by name, then by their place in its list.
Changes = Mapping[str, Mapping[int, Tensor]]

# While the momentum warms up, it is a mean over some t / 16 steps, at least 10.
WARMUP, WARMUP_START = 16.0, 0.1


class AfterLMO(NamedTuple):
    """The LMO of a stack, with all that an optimizer may change it by.

    Args:
        O: The `lmo` of M, `(n, rows, columns)`; may be overwritten. float32,
            but where products of half precision gave it.
        M: Momentum of `work.stack.mine`, likewise; in half precision where B
            is.
        work: The stack.
        weights: 1 - b1, or 0 without a gradient: scalars, one per variable,
            or tensors for its entries.
        active: Which of all matrices have a gradient, `(matrices,)` bool, on
            the host.
        state: The state after the momentum was updated.
    """

    O: Tensor
    M: Tensor
    work: WorkStack
    weights: Sequence[Any]
    active: Tensor
    state: State


@dataclasses.dataclass(frozen=True, kw_only=True)
class StepSettings:
    """The settings of a step; see `LMOOptimizer`.

    Args:
        beta_1: Decay of the momentum.
        nesterov: Whether b1 B_t + (1 - b1) G_t goes to line 6.
        momentum_warmup: Whether 1 - b1 is at least min(0.1, 16 / t).
        first_gradient_starts_momentum: Whether B_0 = G_1; else B_0 = 0.
        noise: Settings of the noise, or None.
        adamw: Settings of AdamW for the roles without an LMO, or None.
        decays: The decay gamma of each role.
        cast: Function of new weights, their dtype, `t` and `number` of the
            variable; None rounds to the nearest.
        before_lmo: Function of the momentum of a stack to what line 6 sees.
        after_lmo: Function to the direction, and changes of the state.
    """

    beta_1: float
    nesterov: bool
    momentum_warmup: bool
    first_gradient_starts_momentum: bool
    noise: NoiseAdaptiveRate | None
    adamw: AuxiliaryAdamW | None
    decays: Mapping[str, float]
    cast: Callable[..., Tensor] | None
    before_lmo: Callable[[Tensor], Tensor]
    after_lmo: Callable[[AfterLMO], tuple[Tensor, Changes]]


class Scalars(NamedTuple):
    """Lists of one scalar for each variable, or one tensor for its entries.

    Args:
        gradient_weight: Of G_t in B_t [Alg. 1, line 5]; 0 without a gradient.
            With Nesterov's momentum likewise in what line 6 sees.
        decay_factor: On the weight in line 10, 1 - eta gamma.
        rate: eta, 0 without a gradient; AdamW's is its own.
        active: 1 or 0: whether there is a gradient.
    """

    gradient_weight: list[Any]
    decay_factor: list[Any]
    rate: list[Any]
    active: list[Any]


def step_(
    plan: Plan,
    settings: StepSettings,
    G: Sequence[Tensor],
    B_last: Sequence[Tensor],
    X: Sequence[Tensor],
    state: State,
    *,
    active: Tensor,
    eta: Tensor,
    t: Tensor,
) -> tuple[list[Tensor], State, list[Any]]:
    """One step of Algorithm 1 [Alg. 1, lines 5 to 10].

    Args:
        plan: The plan.
        settings: The settings.
        G: Gradients, one per variable, shaped as the weights.
        B_last: B_{t-1}, likewise, of their dtype; may be overwritten.
        X: Weights, likewise; may be overwritten.
        state: `"last_step"`; with AdamW `"root_velocity"` (of its variables).
            With noise `"noise"`, `"measurements"`, `"row_noise"` and
            `"col_noise"` (if rows and columns are measured) and, by its
            reference, `"previous_gradient"` (one chunk per group) or
            `"gradient_difference"`. May be overwritten.
        active: Which matrices have a gradient, `(matrices,)` bool.
        eta: Learning rate, float32 scalar.
        t: Number of this step, int32 scalar, from 1.

    Returns:
        The new weights, the state with B_t as `"momentum"`, and the weight of
        G_t in B_t of each variable.
    """
    # Lines 7 to 9 come first: line 5 may overwrite B_{t-1}.
    ratio, share = 1.0, None
    new = dict(state)
    if settings.noise is not None:
        ratio, share, changed = measure(
            plan, settings.noise, G, B_last, state, active=active, t=t
        )
        new |= changed
        if changed:
            active = backend.after(changed["noise"], active)
    rates = lmo_rates(plan, ratio, active, eta)
    units = noise_units(plan, settings.noise, share, t, beta_1=settings.beta_1)
    scalars = find_scalars(plan, settings, state["last_step"], active, eta, t)

    # Line 5: B_t.
    B = backend.lerp_(B_last, G, scalars.gradient_weight)
    new["momentum"] = B

    # Line 6: O_t. Line 10: X_{t+1}. One stack after the other, which keeps
    # memory low where steps are eager.
    X = list(X)
    for work, rate, unit in zip(plan.stacks, rates, units, strict=True):
        M = plan.gather(
            work.stack, _with_nesterov(settings, work.stack, B, G, scalars)
        )
        noise = entry_noise(
            work.noise,
            new,
            unit,
            beta_1=settings.beta_1,
            nesterov=settings.nesterov,
        )
        O = work.norm.lmo(settings.before_lmo(M), noise)
        O, changes = settings.after_lmo(
            AfterLMO(O, M, work, scalars.gradient_weight, active, new)
        )
        new = with_changes(new, changes)
        update_stack_(
            plan,
            X,
            work.stack,
            O,
            rate,
            scalars.decay_factor,
            settings=settings,
            t=t,
        )
    if settings.adamw is not None and plan.by_adamw:
        new["root_velocity"] = _update_by_adamw_(
            plan, settings, settings.adamw, X, G, new, scalars, t
        )
    return X, new, scalars.gradient_weight


def lmo_rates(
    plan: Plan, ratio: Tensor | float, active: Tensor, eta: Tensor
) -> list[Tensor]:
    """-eta_t^l s of each stack's matrices, 0 without a gradient, `(n,)` each.

    `ratio` is sqrt(a_t^l / a_t^m), `(matrices,)`, or 1; the rest as `step_`.
    """
    with backend.on_host():
        mask = ops.cast(active, "float32")
    rates = eta * ratio * backend.on_device(mask)
    rates = backend.constant(plan.step_scale) * rates
    return plan.of_stacks(rates)


def find_scalars(
    plan: Plan,
    settings: StepSettings,
    last_step: Tensor,
    active: Tensor,
    eta: Tensor,
    t: Tensor,
) -> Scalars:
    """The scalars of each variable, for lines 5 and 10 and for AdamW.

    `last_step` is the last step with a gradient, `(matrices,)` int32; the rest
    as `step_`.
    """
    with backend.on_host():
        mask = ops.cast(active, "float32")
        rates = eta * backend.constant(plan.rate_scale) * mask
        decays = sum(
            settings.decays[role] * backend.constant(scale)
            for role, scale in plan.decay_scale.items()
        )
        c = momentum_weights(plan, settings, last_step, mask, t)
        vectors = (c, 1.0 - eta * mask * decays, rates, mask)
    return Scalars(*backend.unpack_places(plan.layout.places, *vectors))


def momentum_weights(
    plan: Plan,
    settings: StepSettings,
    last_step: Tensor,
    mask: Tensor,
    t: Tensor,
) -> Tensor:
    """The weight of G_t in B_t [Alg. 1, line 5].

    It is 1 - b1, with `momentum_warmup` at least min(0.1, 16 / t); 0 without a
    gradient, and 1 at a variable's first gradient if that starts the momentum.
    AdamW has its own b1, and its momentum starts at zero.

    `mask` is 1 where there is a gradient, else 0, `(matrices,)` float32; the
    rest as `find_scalars`.

    Returns:
        `(matrices,)` float32.
    """
    c = (1.0 - settings.beta_1) * ops.ones_like(mask)
    if settings.momentum_warmup:
        warmup = WARMUP / ops.cast(t, "float32")
        c = backend.maximum(c, backend.clip(warmup, 0.0, WARMUP_START))
    if settings.first_gradient_starts_momentum:
        c = backend.where(last_step == 0, 1.0, c)
    if settings.adamw is not None:
        by_lmo = backend.constant(plan.by_lmo)
        c = backend.where(by_lmo, c, 1.0 - settings.adamw.beta_1)
    return c * mask


def _with_nesterov(
    settings: StepSettings,
    stack: Stack,
    B: Sequence[Tensor],
    G: Sequence[Tensor],
    scalars: Scalars,
) -> Mapping[int, Tensor]:
    """B_t, or b1 B_t + (1 - b1) G_t, of the stack's variables.

    Only of a few at a time: all at once would be a copy of the model.
    """
    if not settings.nesterov:
        return {i: B[i] for i in stack.indices}
    weights = scalars.gradient_weight
    chosen = ([x[i] for i in stack.indices] for x in (B, G, weights))
    return dict(zip(stack.indices, backend.lerp(*chosen), strict=True))


def _casts(
    settings: StepSettings, indices: Sequence[int], t: Tensor
) -> list[Callable[[Tensor, Any], Tensor]] | None:
    """Casts of new weights to their dtypes; None rounds to the nearest."""
    cast = settings.cast
    if cast is None:
        return None
    return [functools.partial(cast, t=t, number=i) for i in indices]


def with_changes(state: State, changes: Changes) -> State:
    """The state with some tensors of its lists replaced.

    Args:
        state: The state.
        changes: New tensors, by name and by their place in the list.
    """
    replaced = {
        name: [tensors.get(i, old) for i, old in enumerate(state[name])]
        for name, tensors in changes.items()
    }
    return {**state, **replaced}


def update_stack_(
    plan: Plan,
    X: list[Tensor],
    stack: Stack,
    O: Tensor,
    rates: Tensor,
    decay_factor: Sequence[Any],
    *,
    settings: StepSettings,
    t: Tensor,
) -> None:
    """X <- decay_factor X + rate O, of a stack's variables [Alg. 1, line 10].

    Args:
        plan: The plan.
        X: Weights, one per variable; those of the stack are replaced.
        stack: A stack of whole variables.
        O: `(n, rows, columns)`, of `stack.mine`; may be overwritten.
        rates: Rate of each of these matrices, `(n,)`.
        decay_factor: Factor on the weights, one scalar per variable, or one
            tensor for its entries.
        settings: The settings.
        t: Number of the step.
    """
    old = [X[i] for i in stack.indices]
    dtype = "float32" if settings.cast else backend.step_dtype(old)
    steps = backend.scale_(O, rates[:, None, None], dtype)
    updated = backend.update_(
        old,
        plan.scatter(stack, steps, old),
        [decay_factor[i] for i in stack.indices],
        casts=_casts(settings, stack.indices, t),
    )
    for i, x in zip(stack.indices, updated, strict=True):
        X[i] = x


def _update_by_adamw_(
    plan: Plan,
    settings: StepSettings,
    adamw: AuxiliaryAdamW,
    X: list[Tensor],
    G: Sequence[Tensor],
    state: State,
    scalars: Scalars,
    t: Tensor,
) -> list[Tensor]:
    """Replaces AdamW's variables in X, and returns their roots of v."""
    chosen = plan.by_adamw
    with backend.on_host():
        both = ops.stack(debiasing(adamw.beta_1, adamw.beta_2, t))
    updated, roots = adamw_(
        adamw,
        [X[i] for i in chosen],
        [G[i] for i in chosen],
        [state["momentum"][i] for i in chosen],
        state["root_velocity"],
        active=[scalars.active[i] for i in chosen],
        rates=[scalars.rate[i] for i in chosen],
        decay_factors=[scalars.decay_factor[i] for i in chosen],
        debiasing=backend.unpack(both)[0],
        casts=_casts(settings, chosen, t),
    )
    for i, x in zip(chosen, updated, strict=True):
        X[i] = x
    return roots
