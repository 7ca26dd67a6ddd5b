"""Changes of the state in a step."""

from helpers.tiers import logic
from keras_lanton.core.step import with_changes

pytestmark = logic


def test_changes_leave_the_old_state_alone():
    state = {"a": ["x", "y", "z"], "b": ["w"], "count": 3}
    new = with_changes(state, {"a": {1: "new"}})
    assert new == {"a": ["x", "new", "z"], "b": ["w"], "count": 3}
    assert state["a"] == ["x", "y", "z"]
