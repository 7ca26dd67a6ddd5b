"""The part before and after the LMO."""

from helpers.tiers import logic
from keras_lanton.optimizers.direction import Direction
from keras_lanton.optimizers.direction import with_changes

pytestmark = logic


def test_the_usual_one_is_the_lmo() -> None:
    part = Direction()
    assert part.before("M") == "M"
    assert part.after("O", "M", None, None, [], {}) == ("O", {})


def test_changes_leave_the_old_state_alone() -> None:
    state = {"a": ["x", "y", "z"], "b": ["w"], "count": 3}
    new = with_changes(state, {"a": {1: "new"}})
    assert new == {"a": ["x", "new", "z"], "b": ["w"], "count": 3}
    assert state["a"] == ["x", "y", "z"]
