"""Every wrong argument is a ValueError that names it and what it got."""

import keras
import numpy as np
import pytest

from keras_lanton import Lanton

NAN = float("nan")
WRONG = {
    "learning_rate": [1, -1e-3, NAN, float("inf"), "1e-3", None, True],
    "beta_1": [-0.1, 1.0, NAN, "0.9", None, True, [0.9]],
    "beta_2": [-0.1, 1.0, NAN, "0.9", None],
    "alpha": [0, 0.0, -1, NAN, float("inf"), None, "0.3"],
    "alpha_unit": ["relative", None, 1],
    "group_reduction": ["min", None, 1],
    "noise_interval": [0, -1, 1.5, 10.0, None, True, "10"],
    "noise_reference": ["previous", None, 3],
    "noise_estimator": ["qr", None, 3],
    "noise_schedule": ["random", None, True],
    "ns_dtype": ["float64", None, 16],
    "max_temporary_bytes": [0, -1, 1e9, None, True, "1G"],
    "shard_orthogonalization": [1, "auto", 0.5],
    "momentum_dtype": ["int8", "float64", 16, True],
    "previous_gradient_dtype": ["int8", "float64", 16],
    "hidden_scale": [-1, NAN, None, "0.2"],
    "embedding_scale": [-1, NAN, None, "300"],
    "vector_scale": [-1, NAN, None, "1"],
    "vector_norm": ["l2", None, 2],
    "adamw_roles": ["embedding", ("hidden",), ("vector", "vector"), 3, None],
    "adam_lr_ratio": [-1, NAN, None, "1"],
    "adam_beta_1": [-0.1, 1.0, NAN, None],
    "adam_beta_2": [-0.1, 1.0, NAN, None],
    "epsilon": [0, -1e-8, NAN, None],
    "step_scale": ["muon", None, 1],
    "nesterov": [1, "yes", None],
    "ns_steps": [0, -1, 2.5, None, True, "5"],
    "ns_coefficients": ["muon", None, 3, [], [(1, 2)], [(1, 2, NAN)]],
    "nonfinite": ["ignore", None, True],
    "weight_decay": [-0.1, NAN, "0.1", True],
    "weight_decay_exclude": ["bias", [1], ["("], 3],
    "rank": [0, -1, 1.5, True, "6"],
    "power_iterations": [-1, 0.5, True],
    "clipnorm": [0, -1.0, NAN],
    "clipvalue": [0, -1.0, NAN],
    "global_clipnorm": [0, -1.0, NAN],
    "loss_scale_factor": [0, -2.0, NAN],
    "gradient_accumulation_steps": [1, 0, 2.5, "2"],
    "ema_momentum": [1.5, -0.1],
    "ema_overwrite_frequency": [0, 1.5],
}
CASES = [(name, value) for name, values in WRONG.items() for value in values]


@pytest.mark.parametrize(("name", "value"), CASES)
def test_wrong_argument(name: str, value: object) -> None:
    arguments = {name: value}
    if name in ("rank", "power_iterations"):
        arguments["noise_estimator"] = "randomized_svd"
    if name.startswith("ema_"):
        arguments["use_ema"] = True
    with pytest.raises(ValueError, match=rf"{name}(?s:.)*Received") as error:
        Lanton(**arguments)
    assert repr(value) in str(error.value) or str(value) in str(error.value)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"rank": 6}, "rank"),
        ({"power_iterations": 1}, "power_iterations"),
        (
            {
                "previous_gradient_dtype": "bfloat16",
                "noise_reference": "momentum",
            },
            "noise_reference='momentum'",
        ),
        ({"step_scale": "operator", "hidden_scale": 1.0}, "hidden_scale"),
        (
            {"noise_reference": "independent_gradient"},
            "gradient_accumulation_steps=None",
        ),
        (
            {
                "noise_reference": "independent_gradient",
                "gradient_accumulation_steps": 3,
            },
            "gradient_accumulation_steps=3",
        ),
        ({"ns_coefficients": [(1, 2, 3)] * 6}, "ns_steps=5"),
        (
            {"adamw_roles": ("embedding",), "embedding_scale": 30},
            "embedding_scale=30, adamw_roles=",
        ),
        ({"vector_scale": 0.5}, "vector_scale=0.5, adamw_roles="),
        ({"vector_norm": "sign"}, "vector_norm='sign', adamw_roles="),
        (
            {"adamw_roles": ("vector",), "vector_scale": 0.5},
            "Lanton.paper.*vector_scale=0.5, adamw_roles=",
        ),
        ({"adamw_roles": (), "adam_beta_1": 0.5}, "adam_beta_1=0.5"),
        ({"adamw_roles": (), "adam_beta_2": 0.5}, "adam_beta_2=0.5"),
        ({"adamw_roles": [], "adam_lr_ratio": 0.5}, "adam_lr_ratio=0.5"),
        ({"adamw_roles": [], "epsilon": 1e-3}, "epsilon=0.001"),
        ({"clipnorm": 1.0, "clipvalue": 1.0}, "clipnorm"),
        ({"momentum": 0.9}, "momentum"),
    ],
)
def test_arguments_that_do_not_go_together(arguments: dict, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        Lanton(**arguments)


def test_what_adamw_does_not_move_has_its_options() -> None:
    optimizer = Lanton(embedding_scale=30)
    assert optimizer.embedding_scale == 30.0
    assert optimizer.adamw_roles == ("vector",)
    paper = Lanton.paper(adamw_roles=["embedding"], vector_scale=0.5)
    assert paper.embedding_scale == Lanton().embedding_scale
    optimizer = Lanton(adamw_roles=["embedding"], vector_norm="sign")
    assert optimizer.vector_norm == "sign"


def test_paper_takes_all_arguments() -> None:
    paper = Lanton.paper(1e-3)
    assert float(paper.learning_rate) == np.float32(1e-3)
    assert paper.adamw_roles == () and not paper.nesterov
    assert paper.noise.group_reduction == "max"
    other = Lanton.paper(
        learning_rate=1e-3,
        nesterov=True,
        group_reduction="mean",
        adamw_roles=["embedding"],
    )
    assert other.nesterov and other.noise.group_reduction == "mean"
    assert other.adamw_roles == ("embedding",)
    with pytest.raises(ValueError, match="momentun"):
        Lanton.paper(momentun=0.9)


def test_numpy_numbers_are_numbers() -> None:
    optimizer = Lanton(np.float64(1e-3), beta_1=np.float32(0.5), ns_steps=4)
    assert optimizer.get_config()["beta_1"] == 0.5
    assert isinstance(optimizer.get_config()["beta_1"], float)


def variables(*shapes: tuple[int, ...]) -> list[keras.Variable]:
    return [
        keras.Variable(np.ones(shape, "float32"), name=f"v{i}")
        for i, shape in enumerate(shapes)
    ]


def test_assign_role_refuses_what_cannot_be() -> None:
    optimizer = Lanton()
    (v,) = variables((2, 3, 4))
    with pytest.raises(ValueError, match="one of.*hidden.*Received.*'matrix'"):
        optimizer.assign_role("matrix", [v])
    with pytest.raises(ValueError, match="overlap(?s:.)*Received"):
        optimizer.assign_role("hidden", [v], (0, 1), (1, 2))
    with pytest.raises(ValueError, match="Received.*7"):
        optimizer.assign_role("hidden", [v], 7)
    with pytest.raises(ValueError, match="Received: variables=\\[\\]"):
        optimizer.assign_role("hidden", [])
    with pytest.raises(ValueError, match="once(?s:.)*Received.*v0"):
        optimizer.assign_role("hidden", [v, v])
    optimizer.assign_role("hidden", v)
    with pytest.raises(ValueError, match="once(?s:.)*Received.*v0"):
        optimizer.assign_role("vector", [v])


def test_roles_are_for_the_variables_of_build() -> None:
    optimizer = Lanton()
    v, other = variables((2, 3), (2, 3))
    optimizer.assign_role("hidden", [other])
    with pytest.raises(ValueError, match="Allowed.*v0(?s:.)*Received.*v1"):
        optimizer.build([v])


def test_too_late_and_too_early() -> None:
    optimizer = Lanton()
    (v,) = variables((2, 3))
    for early in (
        lambda: optimizer.layers,
        optimizer.summary,
        optimizer.noise_report,
    ):
        with pytest.raises(ValueError, match="built"):
            early()
    assert optimizer.skipped_steps == 0
    with pytest.raises(ValueError, match="built model(?s:.)*Received: model="):
        optimizer.read_roles(keras.Sequential([keras.layers.Dense(2)]))
    optimizer.build([v])
    for late in (
        lambda: optimizer.assign_role("hidden", [v]),
        lambda: optimizer.read_roles(keras.Sequential()),
        lambda: optimizer.exclude_from_weight_decay([v]),
    ):
        with pytest.raises(ValueError, match="before(?s:.)*Received"):
            late()


def test_other_variables_than_it_was_built_with() -> None:
    optimizer = Lanton()
    v, other = variables((2, 3), (2, 3))
    optimizer.build([v])
    with pytest.raises(ValueError, match="originally built with"):
        optimizer.apply([np.ones((2, 3), "float32")], [other])


def test_gradient_of_another_shape() -> None:
    optimizer = Lanton()
    (v,) = variables((2, 3))
    with pytest.raises(
        ValueError, match="v0.*\\(2, 3\\).*Received.*\\(3, 2\\)"
    ):
        optimizer.apply([np.ones((3, 2), "float32")], [v])
