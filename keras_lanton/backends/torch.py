"""PyTorch: plain Python conditionals, nothing recorded for autograd."""

import contextlib
from collections.abc import Callable
from typing import Any

import torch

Tensor = Any

SUMS_OVER_REPLICAS = False


def cond(
    predicate: Tensor, on_true: Callable[[], Any], on_false: Callable[[], Any]
) -> Any:
    """One of two functions without arguments, by a boolean scalar."""
    # `keras.ops.cond` names an op at each call, which torch.compile takes for
    # new code each time.
    return on_true() if bool(predicate) else on_false()


def no_grad() -> contextlib.AbstractContextManager[Any]:
    """Turns autograd off for callers that step outside `fit`."""
    context: contextlib.AbstractContextManager[Any] = torch.no_grad()
    return context


def dense(gradient: Tensor | None) -> Tensor | None:
    """Gradients are dense already."""
    return gradient


class OptimizerHooks:
    """What the base class does otherwise on PyTorch."""

    def _is_update_step(self) -> None:
        """Keras calls the update only where a window closes."""
