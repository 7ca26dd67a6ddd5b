"""A batch size from the gradient noise."""

import dataclasses
from collections.abc import Iterator
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_lanton.lanton import Lanton
from keras_lanton.settings import NoiseAdaptiveRate
from keras_lanton.tools.probing import endless_batches
from keras_lanton.tools.probing import loss_of_step
from keras_lanton.tools.probing import optimizer_in_place
from keras_lanton.tools.probing import optimizer_within
from keras_lanton.tools.probing import scope_of
from keras_lanton.validation import COUNT
from keras_lanton.validation import SEED
from keras_lanton.validation import Numbers
from keras_lanton.validation import check_numbers
from keras_lanton.validation import shown

FEWEST_STEPS = 8
# So near to 1 that all gradients have about the same weight.
DECAY = 0.9999
MOST_SKIPPED = 1000  # batches


@dataclasses.dataclass(frozen=True, kw_only=True)
class BatchSizeAdvice:
    """The result of `advise_batch_size`; `print` says it in words.

    Args:
        batch_size: The advice, in examples: the noise scale of the hidden
            matrices, or of all where no matrix is hidden.
        noise_scale: The median noise scale of each role's matrices, in
            examples.
        measured_at: The batch size of the measurement.
        is_lower_bound: Whether the noise scale is too large to be measured in
            so few steps: the advice is then the largest that could be.
    """

    batch_size: int
    noise_scale: Mapping[str, float]
    measured_at: int
    is_lower_bound: bool

    def steps(self, batch_size: int) -> float:
        """Steps of a run at a batch size, over the fewest at any.

        Args:
            batch_size: In examples, at least 1.

        Returns:
            1 + advice / batch size.

        Raises:
            ValueError: For a wrong argument.

        References:
            McCandlish et al., arXiv 1812.06162, equation 2.11.
        """
        check_numbers({"batch_size": COUNT}, batch_size=batch_size)
        return 1.0 + self.batch_size / batch_size

    def __str__(self) -> str:
        now, knee = self.measured_at, self.batch_size
        scales = ", ".join(
            f"{role} {scale:,.0f}" for role, scale in self.noise_scale.items()
        )
        if self.is_lower_bound:
            return (
                f"Batches of up to {knee:,} examples pay, and perhaps larger "
                "ones: more noise than that cannot be measured in so few "
                "steps. Measure with more `steps`, or with larger batches. "
                f"Noise scale in examples: {scales}."
            )
        saved = 1.0 - self.steps(2 * now) / self.steps(now)
        return (
            f"Larger batches stop paying at about {knee:,} examples: a run "
            "then takes twice the fewest possible steps. "
            f"From {now:,} examples to {2 * now:,}, a run takes "
            f"{saved:.0%} fewer steps; half of them is the most that is "
            f"possible. Noise scale in examples: {scales}."
        )


def advise_batch_size(
    model: Any,
    x: Any,
    y: Any = None,
    *,
    batch_size: int = 32,
    steps: int = 64,
    seed: int = 0,
    verbose: bool = True,
) -> BatchSizeAdvice:
    """Says at which batch size larger batches stop paying.

    The gradients of some batches are compared, at the model's weights as they
    are. Noise is the dual norm of their differences, signal that of their
    mean. At the noise scale, the batch size where both are equal, a run takes
    twice the fewest possible steps. It grows while the loss falls: measure a
    model that has trained for a while. The model and its optimizer are as they
    were afterwards; random seeds and the statistics of metrics are not.

    Args:
        model: A compiled model, with any optimizer. Roles are those of an
            optimizer of this package, or else are read from its layers.
        x: An array, or a dict or list of them, with `y`; or batches `(x, y)`
            or `(x, y, weights)` in a dataset, `PyDataset`, list or other
            iterable, in random order, which is begun again where it ends.
        y: Targets of arrays.
        batch_size: Batch size of arrays, at least 1.
        steps: Batches to compare, at least 8. With more, larger noise scales
            can be told from none.
        seed: Seed of the order of arrays.
        verbose: Whether to show a progress bar.

    Returns:
        A `BatchSizeAdvice`: `batch_size`, `noise_scale` by role, and words.

    Raises:
        ValueError: For a wrong argument, a model that is not compiled or has
            no matrix, data without a batch, or a loss or gradient that is not
            finite.

    Examples:
        >>> advice = advise_batch_size(model, x, y, steps=8, verbose=False)
        >>> print(advice)

    References:
        McCandlish et al., arXiv 1812.06162, for Euclidean norms; dual norms
        as in arXiv 2510.14009.
    """
    check_numbers(NUMBERS, batch_size=batch_size, steps=steps, seed=seed)
    if steps < FEWEST_STEPS:
        raise ValueError(
            f"`steps` must be at least {FEWEST_STEPS}. Received: steps={steps}"
        )
    with scope_of(model):
        probe = _probe(model)
    batches = _of_one_size(endless_batches(x, y, batch_size, seed))
    progress = keras.utils.Progbar(steps, verbose=1 if verbose else 0)
    with optimizer_in_place(model, probe):
        for k in range(steps):
            batch = next(batches)
            loss = loss_of_step(model, batch)
            if not np.isfinite(loss):
                raise ValueError(
                    "The loss must be finite on every batch. "
                    f"Received: {loss} on batch {k + 1}"
                )
            progress.update(k + 1, [("loss", loss)])
        measured_at = _size_of(batch)
        taken = probe.taken_steps()
        noise = probe.noise_norms() / 2**0.5  # of one gradient
        signal = probe.mean_norms(taken)
        roles = probe.roles_of_matrices()
    measured = roles != ""
    if not measured.any():
        raise ValueError(
            "`advise_batch_size` needs a model with trainable matrices. "
            f"Received: {[spec.path for spec in probe.updated_specs]}"
        )
    scales = _noise_scales(
        measured_at, taken, noise[measured], signal[measured]
    )
    roles = roles[measured]
    noise_scale = {
        role: float(np.median(scales[roles == role]))
        for role in dict.fromkeys(roles.tolist())
    }
    scale = noise_scale.get("hidden", float(np.median(scales)))
    return BatchSizeAdvice(
        batch_size=max(1, round(scale)),
        noise_scale=noise_scale,
        measured_at=measured_at,
        is_lower_bound=scale >= measured_at * taken,
    )


def _size_of(batch: Any) -> int:
    """The examples of a batch."""
    return int(ops.shape(keras.tree.flatten(batch)[0])[0])


def _of_one_size(batches: Iterator[Any]) -> Iterator[Any]:
    """The batches of the first one's size: often the last one is smaller."""
    first = next(batches)
    yield first
    skipped = 0
    for batch in batches:
        if _size_of(batch) == _size_of(first):
            skipped = 0
            yield batch
            continue
        skipped += 1
        if skipped == MOST_SKIPPED:
            raise ValueError(
                "The batches of `x` must have one size, but for a few. "
                f"Received: {_size_of(first)} examples, then {skipped} batches "
                f"of other sizes, such as {_size_of(batch)}"
            )


NUMBERS: Numbers = {"batch_size": COUNT, "steps": COUNT, "seed": SEED}


def _noise_scales(
    batch_size: int, steps: int, noise: np.ndarray, signal: np.ndarray
) -> np.ndarray:
    """Batch sizes at which noise and signal are equal.

    Args:
        batch_size: Of the measurement.
        steps: Of the measurement.
        noise: Dual norm of the noise of a batch' gradient, `(matrices,)`.
        signal: Dual norm of the mean of all gradients, `(matrices,)`.

    Returns:
        `(matrices,)`, at most batch size times steps: beyond, the mean of all
        gradients has more noise than signal.

    Raises:
        ValueError: If a norm is not finite.
    """
    if not (np.isfinite(noise).all() and np.isfinite(signal).all()):
        raise ValueError(
            "The gradients must be finite. "
            f"Received: noise={noise}, signal={signal}"
        )
    in_mean = noise**2 / steps  # of the noise
    left = np.maximum(signal**2 - in_mean, in_mean)
    return batch_size * noise**2 / np.where(left > 0, left, 1.0)


class _Probe(Lanton):
    """Lanton whose momentum after n steps is n (1 - b1) times their mean."""

    first_gradient_starts_momentum = False

    def roles_of_matrices(self) -> np.ndarray:
        """Role of each matrix, `(matrices,)`; "" where AdamW updates it."""
        roles = self.lmo_roles
        return np.array(
            [
                spec.role if spec.role in roles else ""
                for spec in self.updated_specs
                for _ in range(spec.batch)
            ]
        )

    def taken_steps(self) -> int:
        """Steps whose gradient counts; loss scaling leaves some out.

        Raises:
            ValueError: If a gradient was not finite, or few count.
        """
        count = int(ops.convert_to_numpy(self.micro_steps))
        if self.skipped_steps or count < FEWEST_STEPS:
            raise ValueError(
                "The gradients must be finite on every batch, or with loss "
                f"scaling on {FEWEST_STEPS} of them. Received: "
                f"{count - self.skipped_steps} finite gradients"
            )
        return count

    def noise_norms(self) -> np.ndarray:
        """Root mean square dual norm of G_t - G_{t-1}, `(matrices,)`."""
        report = self.noise_report(self.noise_snapshot())
        measured = self.roles_of_matrices() != ""
        norms = np.zeros(len(measured), "float32")
        found = [row["noise"] for row in report.values()]
        norms[measured] = np.concatenate([*found, []])
        return norms

    def mean_norms(self, steps: int) -> np.ndarray:
        """Dual norm of the mean gradient of all steps, `(matrices,)`."""
        plan, B = self._plan, self._momentum.read(self._state.read())
        norms = np.zeros(plan.layout.matrices, "float32")
        for work in plan.stacks:
            M = plan.gather(work.stack, {i: B[i] for i in work.stack.indices})
            dual = work.norm.dual(M)
            norms[work.matrices] = ops.convert_to_numpy(dual)
        norms *= plan.dual_scale
        return norms / (1.0 - self.beta_1**steps)


def _probe(model: Any) -> _Probe:
    """An optimizer that measures every matrix on every step, at a rate of 0."""
    inner = optimizer_within(model)
    if inner is None:
        raise ValueError(
            "`advise_batch_size` needs a compiled model. "
            f"Received: model={shown(model)}"
        )
    probe = _Probe(
        0.0,
        beta_1=DECAY,
        bias_correction=False,
        weight_decay=None,
        noise=NoiseAdaptiveRate(
            alpha_unit="absolute",
            within_matrices=False,
            beta_2=DECAY,
            interval=1,
        ),
        roles=inner.get_config().get("roles"),
    )
    if probe.get_config()["roles"] is None:
        probe.read_roles(model)
    return probe
