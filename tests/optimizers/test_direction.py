"""What turns momentum into a direction."""

from helpers.tiers import logic
from keras_lanton.norms.norms import Sign
from keras_lanton.optimizers.direction import Direction
from keras_lanton.optimizers.direction import with_changes

pytestmark = logic


class Same(Sign):
    """An LMO that can be told apart."""

    def lmo(self, B: object) -> object:
        return ("lmo", B)


def test_the_usual_one_is_the_lmo() -> None:
    found, changes = Direction()(Same(), None, None, "M", [], {})
    assert found == ("lmo", "M")
    assert changes == {}


def test_changes_leave_the_old_state_alone() -> None:
    state = {"a": ["x", "y", "z"], "b": ["w"], "count": 3}
    new = with_changes(state, {"a": {1: "new"}})
    assert new == {"a": ["x", "new", "z"], "b": ["w"], "count": 3}
    assert state["a"] == ["x", "y", "z"]
