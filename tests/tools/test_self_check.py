"""The checks of `python -m keras_lanton`."""

from helpers.tiers import logic
from keras_lanton.tools import self_check

pytestmark = logic


def test_nan_is_no_pass():
    assert not self_check.Check("step", float("nan"), 1.0).passed
    assert self_check.Check("step", 0.0, 0.0).passed
