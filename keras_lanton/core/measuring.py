"""Lines 7 to 9 on a plan: which matrices are measured now, and what follows.

In every `interval` steps each matrix is measured once. Staggered, a chunk of
each group on every step: then no step is longer than another, and of the
previous gradient only the chunk is kept that the next step measures.

All functions here name alike what they take:

- `settings` are those of the noise, and `state` is that before this step;
- `G` and `B_last` are G_t and B_{t-1}, one tensor per variable;
- `active` tells which matrices have a gradient, `measured` which are measured
  now: `(matrices,)` bool on the host;
- `due` is from `due_chunks`, `share` from `share_of_measurements`;
- `t` is the number of this step, an int32 scalar.
"""

import functools
from collections.abc import Sequence
from typing import Any

from keras import ops

from keras_lanton.backends import backend
from keras_lanton.core.adamw import debias
from keras_lanton.core.matrices import Tensors
from keras_lanton.core.noise import momentum_variance
from keras_lanton.core.noise import rate_ratio
from keras_lanton.core.noise import sample_variance
from keras_lanton.core.noise import share_of_measurements
from keras_lanton.core.noise import update_noise
from keras_lanton.core.plan import MeasurementGroup
from keras_lanton.core.plan import NoiseSlice
from keras_lanton.core.plan import Plan
from keras_lanton.core.whitening import EntryNoise
from keras_lanton.settings import NoiseAdaptiveRate
from keras_lanton.types import State
from keras_lanton.types import Tensor

LARGEST = 1e36  # of what is measured: its sums and multiples are finite
LARGEST_NOISE = 1e30  # in units of the signal


def measure(
    plan: Plan,
    settings: NoiseAdaptiveRate,
    G: Tensors,
    B_last: Tensors,
    state: State,
    *,
    active: Tensor,
    t: Tensor,
) -> tuple[Tensor, Tensor, State]:
    """Rates over eta_t, and the new state [Alg. 1, lines 7 to 9].

    Returns:
        Ratios and `share_of_measurements`, `(matrices,)` float32 each, and the
        changed entries of the state: `"noise"`, `"measurements"`,
        `"row_noise"` and `"col_noise"` with `within_matrices`, and the
        gradients that the next step compares with, if it does.
    """
    if not plan.groups:
        ones = ops.ones_like(state["noise"])
        return ones, ones, {}
    with backend.on_host():
        due = due_chunks(plan, settings, t)
        measured = measured_matrices(
            plan, settings, due, state["last_step"], active, t
        )
    samples = take_samples(plan, settings, G, B_last, state, due)
    d = dual_norms(settings, samples)
    new = _accumulate(plan, settings, state, d, measured)
    if plan.whitened:
        lines = _lines(plan, G, samples)
        new |= _accumulate_lines(plan, settings, state, lines, measured, active)
    if "previous_gradient" in state:
        # XLA must know that the samples come before.
        new["previous_gradient"] = store_gradients(
            plan, settings, plan.whole(G), state, backend.after(d, active), t
        )
    share = share_of_measurements(settings.beta_2, new["measurements"])
    ratio = rate_ratio(settings, new["noise"], share, plan.rate_groups)
    return ratio, share, new


def due_chunks(plan: Plan, settings: NoiseAdaptiveRate, t: Tensor) -> Tensor:
    """The chunk of each group that is measured on step t.

    Returns:
        `(groups,)` int32; the number of chunks where a group pauses.
    """
    first = 1 if settings.reference == "independent_gradient" else 2
    start = t - first - backend.constant(plan.offsets)
    due = start % settings.interval
    return backend.minimum(due, backend.constant(plan.chunk_counts))


def measured_matrices(
    plan: Plan,
    settings: NoiseAdaptiveRate,
    due: Tensor,
    last_step: Tensor,
    active: Tensor,
    t: Tensor,
) -> Tensor:
    """The matrices that are due and have both gradients of D_t.

    `last_step` is the last step with a gradient, `(matrices,)` int32.
    """
    comparable = active
    if settings.alpha_unit == "signal" or settings.reference == "momentum":
        comparable = active & (last_step > 0)
    if settings.reference == "previous_gradient":
        # Only the immediately preceding gradient will do.
        known = active & (last_step > 0)
        comparable = known & (last_step == t - 1)
    here = backend.take(due, backend.constant(plan.group_of))
    is_due = here == backend.constant(plan.chunk_of)
    return is_due & comparable


def take_samples(
    plan: Plan,
    settings: NoiseAdaptiveRate,
    G: Tensors,
    B_last: Tensors,
    state: State,
    due: Tensor,
) -> list[tuple[Tensor, ...]]:
    """The measures of the noise samples D_t of each group's due chunk.

    Returns:
        For each group ||D_t||_* over `dual_scale`, in units of the signal also
        ||B_{t-1}||_*, and where they are measured the RMS of rows and of
        columns: tensors like its `no_sample`.
    """
    samples = []
    pairs = zip(plan.groups, *backend.unpack(due), strict=True)
    for k, (group, chunk) in enumerate(pairs):
        sample = functools.partial(
            _sample, plan, settings, group, k, chunk, G, B_last, state
        )
        if group.pauses:
            nothing = functools.partial(_no_sample, settings, group)
            is_due = chunk < len(group.chunks)
            samples.append(backend.cond(is_due, sample, nothing))
        else:
            samples.append(sample())
    return samples


def _no_sample(
    settings: NoiseAdaptiveRate, group: MeasurementGroup
) -> tuple[Tensor, ...]:
    """Zeros in the place of `_sample`."""
    d, signal, *lines = map(backend.constant, group.no_sample)
    norms = (d, signal) if settings.alpha_unit == "signal" else (d,)
    return (*norms, *lines)


def _sample(
    plan: Plan,
    settings: NoiseAdaptiveRate,
    group: MeasurementGroup,
    k: int,
    chunk: Any,
    G: Tensors,
    B_last: Tensors,
    state: State,
) -> tuple[Tensor, ...]:
    """The measures of D_t in a chunk of group k."""
    mine = functools.partial(_chunk_of_mine, plan, group, chunk)
    if settings.reference == "independent_gradient":
        D = mine(state["gradient_difference"])
    elif settings.reference == "momentum":
        D = mine(G) - mine(B_last)
    else:
        before = ops.cast(state["previous_gradient"][k], "float32")
        D = mine(G) - _of_mine(group, chunk, before)
    if not backend.EAGER:  # where huge gradients are not halved
        D = backend.clip(D, -LARGEST, LARGEST)
    norms = [group.norm.dual(D)]
    lines = backend.line_rms(D) if group.samples_lines else ()
    if settings.alpha_unit == "signal":
        norms.append(group.norm.dual(mine(B_last)))
    found = (*norms, *(backend.minimum(one, LARGEST) for one in lines))
    return tuple(_of_all(plan, group, chunk, one) for one in found)


def dual_norms(
    settings: NoiseAdaptiveRate, samples: Sequence[tuple[Tensor, ...]]
) -> Tensor:
    """||D_t||_* of all groups' chunks, or ||D_t||_* / ||B_{t-1}||_*.

    They are of `take_samples`, `(samples,)` float32; over the norm's
    `dual_scale` if they are no quotients.
    """
    d = backend.concatenate([sample[0] for sample in samples])
    d = backend.minimum(d, LARGEST)
    if settings.alpha_unit != "signal":
        return d
    signal = backend.concatenate([sample[1] for sample in samples])
    d = d / backend.divisor(backend.minimum(signal, LARGEST))
    return backend.minimum(d, LARGEST_NOISE)


def _accumulate(
    plan: Plan,
    settings: NoiseAdaptiveRate,
    state: State,
    d: Tensor,
    measured: Tensor,
) -> State:
    """The noise after this step, of `dual_norms` [Alg. 1, line 7]."""
    d = backend.take(d, backend.constant(plan.sample_of))
    if settings.alpha_unit != "signal":  # a quotient, where it cancels
        d = backend.constant(plan.dual_scale) * d
    measured = backend.on_device(measured)
    noise = update_noise(state["noise"], d, beta_2=settings.beta_2)
    return {
        "noise": backend.where(measured, noise, state["noise"]),
        "measurements": state["measurements"] + ops.cast(measured, "int32"),
    }


def _accumulate_lines(
    plan: Plan,
    settings: NoiseAdaptiveRate,
    state: State,
    lines: Sequence[Tensor],
    measured: Tensor,
    active: Tensor,
) -> State:
    """The noise of rows and columns after this step: line 7 of each."""
    every = plan.from_every_gradient
    with backend.on_host():
        seen = backend.where(backend.constant(every), active, measured)
    masks = [m[:, None] for m in plan.of_whitened(backend.on_device(seen))]
    weights = [
        1.0 - (decay_of_step(settings) if every[m[0]] else settings.beta_2)
        for m in plan.whitened
    ]
    old = [*state["row_noise"], *state["col_noise"]]
    noise = [
        backend.where(mask, one, before)
        for mask, one, before in zip(
            masks * 2,
            backend.mean_roots(old, lines, weights * 2),
            old,
            strict=True,
        )
    ]
    count = len(masks)
    return {"row_noise": noise[:count], "col_noise": noise[count:]}


def _lines(
    plan: Plan, G: Tensors, samples: Sequence[tuple[Tensor, ...]]
) -> list[Tensor]:
    """RMS of the rows of each tensor in `"row_noise"`, then of its columns.

    They are those of the gradients where `from_every_gradient`, else those of
    the samples.
    """
    parts: list[list[tuple[Tensor, ...]]] = [[] for _ in plan.whitened]
    for group, sample in zip(plan.groups, samples, strict=True):
        if group.whitened is None:
            continue
        if not group.samples_lines:
            stack = group.stack
            found = backend.line_rms(plan.gather(stack, G))
            lines = tuple(plan.of_all(stack, one) for one in found)
        elif len(group.chunks) > 1:  # one chunk in the place of each
            place = backend.constant(group.place_in_chunk)
            lines = tuple(backend.take(one, place) for one in sample[-2:])
        else:
            lines = sample[-2:]
        parts[group.whitened].append(lines)
    return [
        p[0][i] if len(p) == 1 else backend.concatenate([x[i] for x in p])
        for i in (0, 1)
        for p in parts
    ]


def decay_of_step(settings: NoiseAdaptiveRate) -> float:
    """The decay of what is measured on every step: H's for each interval."""
    decay: float = settings.beta_2 ** (1.0 / settings.interval)
    return decay


def store_gradients(
    plan: Plan,
    settings: NoiseAdaptiveRate,
    G: Tensors,
    state: State,
    active: Tensor,
    t: Tensor,
) -> list[Tensor]:
    """The gradients that the next step compares with.

    Returns:
        One chunk per group; without any gradient the stored one.
    """
    with backend.on_host():
        due = due_chunks(plan, settings, t + 1)
        coming = backend.where(
            ops.any(active), due, backend.constant(plan.chunk_counts)
        )
    (coming,) = backend.unpack(coming)
    return [
        _chunk_or_old(group, chunk, G, old)
        for group, chunk, old in zip(
            plan.groups, coming, state["previous_gradient"], strict=True
        )
    ]


def _chunk(
    group: MeasurementGroup,
    chunk: Any,
    tensors: Tensors,
    dtype: str = "float32",
) -> Tensor:
    """A chunk of the variables' tensors, by its number: `group.shape`."""

    def gather(i: int) -> Tensor:
        return ops.cast(group.gather(i, tensors), dtype)

    count = len(group.chunks)
    if count == 1:
        return gather(0)
    if group.gathers_whole and not isinstance(chunk, int):
        chunks = group.gather_all(tensors)
        return ops.cast(ops.take(chunks, chunk, axis=0), dtype)
    branches = [functools.partial(gather, i) for i in range(count)]
    return backend.switch(chunk, branches)


def _chunk_of_mine(
    plan: Plan, group: MeasurementGroup, chunk: Any, tensors: Tensors
) -> Tensor:
    """`_chunk`; where processes have chunks of their own, of this one's."""
    if not group.is_dealt_out:
        return _chunk(group, chunk, plan.whole(tensors))
    return ops.cast(plan.gather(group.chunks[chunk], tensors), "float32")


def _of_mine(group: MeasurementGroup, chunk: Any, x: Tensor) -> Tensor:
    """The entries of a chunk that `_chunk_of_mine` has."""
    return group.chunks[chunk].of_mine(x) if group.is_dealt_out else x


def _of_all(
    plan: Plan, group: MeasurementGroup, chunk: Any, x: Tensor
) -> Tensor:
    """Inverse of `_of_mine`."""
    if not group.is_dealt_out:
        return x
    return group.padded(chunk, plan.of_all(group.chunks[chunk], x))


def _chunk_or_old(
    group: MeasurementGroup, chunk: Any, tensors: Tensors, old: Tensor
) -> Tensor:
    """A chunk in the dtype of the stored one, which stays in a pause."""
    (found,) = backend.replace_if(
        chunk < len(group.chunks),
        lambda old: (_chunk(group, chunk, tensors, old.dtype),),
        old,
    )
    return found


def noise_units(
    plan: Plan,
    settings: NoiseAdaptiveRate | None,
    share: Tensor | None,
    t: Tensor,
    *,
    beta_1: float,
) -> list[Tensor] | list[None]:
    """The value of `"row_noise"` and `"col_noise"` at gradient noise of 1.

    Returns:
        One tensor per stack, `(n,)` float32, above 0; None where no rows are
        measured.
    """
    if settings is None or share is None or not plan.whitened:
        return [None] * len(plan.stacks)
    unit = sample_variance(settings.reference, beta_1) ** 0.5 * share
    if plan.from_every_gradient.any():
        every = backend.constant(plan.from_every_gradient)
        with backend.on_host():
            since_start = ops.sqrt(debias(decay_of_step(settings), t))
        unit = backend.where(every, backend.on_device(since_start), unit)
    return plan.of_stacks(unit)


def entry_noise(
    place: NoiseSlice | None,
    state: State,
    unit: Tensor | None,
    *,
    beta_1: float,
    nesterov: bool,
) -> EntryNoise | None:
    """The noise of the entries of a stack's matrices; None if not measured.

    Args:
        place: Where the state has that of their rows and columns.
        state: The state, with this step's measurements.
        unit: Of each matrix in the stack, from `noise_units`.
        beta_1: Decay of the momentum.
        nesterov: Whether line 6 sees b1 B_t + (1 - b1) G_t.
    """
    if place is None or unit is None:
        return None
    here = slice(place.start, place.stop)
    return EntryNoise(
        rows=state["row_noise"][place.index][here],
        columns=state["col_noise"][place.index][here],
        unit=unit,
        momentum_share=momentum_variance(beta_1, nesterov) ** 0.5,
    )
