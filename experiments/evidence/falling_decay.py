"""Weight decay that falls as 1 / t, to be tried against a constant one.

With a constant decay the weights are a mean over the last 1 / (rate x decay)
steps. With this one they are a mean over a share of all steps so far, whatever
their number.
"""

from keras import ops

from keras_lanton import Lanton

MOST = 10.0  # times `weight_decay`, in the first steps


class FallingDecay(Lanton):
    """`Lanton` whose weight decay falls as 1 / t.

    Args:
        *args: As `Lanton`.
        horizon: The step on which the decay is `weight_decay`.
        **kwargs: As `Lanton`.
    """

    def __init__(self, *args, horizon, **kwargs):
        super().__init__(*args, **kwargs)
        self.horizon = horizon

    def _scalars(self, last_step, active, eta, t):
        share = ops.minimum(self.horizon / ops.cast(t, "float32"), MOST)
        found = super()._scalars(last_step, active, eta, t)
        names = ("decay_factor", "adamw_decay_factor")
        return found._replace(
            **{
                name: [1.0 - share * (1.0 - k) for k in getattr(found, name)]
                for name in names
            }
        )
