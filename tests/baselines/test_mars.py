"""Mars without its correction is AdamW."""

from helpers.baselines import adamw
from helpers.baselines import assert_equal
from helpers.baselines import run
from helpers.tiers import logic
from helpers.variables import FEW
from helpers.variables import make_gradients
from keras_lanton import baselines

pytestmark = logic


def test_mars_without_correction_is_adamw():
    gradients = [
        [1e-3 * g for g in one] for one in make_gradients(3, FEW)
    ]  # of norm below 1
    found, start = run(
        baselines.Mars,
        gradients,
        gamma=0.0,
        optimize_1d=True,
        weight_decay=0.1,
        beta_1=0.9,
        beta_2=0.95,
    )
    assert_equal(found, adamw(gradients)[0], start)
