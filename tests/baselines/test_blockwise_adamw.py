"""BlockwiseAdamW of equal ratios is AdamW."""

from helpers.baselines import adamw
from helpers.baselines import assert_equal
from helpers.baselines import run
from helpers.tiers import logic
from helpers.variables import FEW
from helpers.variables import make_gradients
from keras_lanton import baselines
from keras_lanton.baselines.blockwise_adamw import MULTIPLIERS

pytestmark = logic


def test_blockwise_adamw_of_equal_ratios_is_adamw():
    gradients = make_gradients(3, FEW)
    ones = dict.fromkeys(MULTIPLIERS, 1.0)
    found, start = run(baselines.BlockwiseAdamW, gradients, multipliers=ones)
    assert_equal(found, adamw(gradients)[0], start)
