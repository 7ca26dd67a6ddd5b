"""The checks of `python -m keras_lanton`."""

from keras_lanton.utils import self_check


def test_nan_is_no_pass() -> None:
    assert not self_check.Check("step", float("nan"), 1.0).passed
    assert self_check.Check("step", 0.0, 0.0).passed
