"""How the variables of an optimizer lie."""

import numpy as np

from helpers.specs import spec_of
from helpers.tiers import logic
from keras_lanton.core.layout import VariableLayout

pytestmark = logic


def test_matrices_are_those_of_the_updated_variables() -> None:
    specs = tuple(map(spec_of, ("tall", "bias", "experts", "table")))
    layout = VariableLayout(
        all_specs=specs,
        updated=(0, 2, 3),
        decayed=(True, False, True),
        rate_multipliers=(1.0,) * 3,
    )
    assert layout.specs == (specs[0], specs[2], specs[3])
    assert layout.matrices == 1 + 5 + 1
    np.testing.assert_array_equal(
        layout.variable_of_matrix, [0, 1, 1, 1, 1, 1, 2]
    )


def test_groups_are_the_roles_that_occur() -> None:
    specs = tuple(map(spec_of, ("dense", "bias", "square")))
    layout = VariableLayout(
        all_specs=specs,
        updated=(0, 1, 2),
        decayed=(True,) * 3,
        rate_multipliers=(1.0,) * 3,
    )
    hidden, vector = layout.role_masks
    np.testing.assert_array_equal(hidden, [True, False, True])
    np.testing.assert_array_equal(vector, [False, True, False])
    assert layout.with_roles(("vector",)) == [1]
    assert layout.with_roles(None) == [0, 1, 2]
