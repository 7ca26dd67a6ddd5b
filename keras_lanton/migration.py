"""From another optimizer's settings to Lanton's."""

import warnings
from collections.abc import Mapping
from typing import Any

import keras

from keras_lanton.arguments import shown

# Lanton's best rate over AdamW's: 5 on the demo's GPT-2 and on the Llama of
# docs/paper.md, 2.5 on its GPT-2; the paper's tables have 6 to 50.
RATE_OVER_ADAMW = 5.0
# What means the same to every Keras optimizer.
KEPT = (
    "weight_decay",
    "clipnorm",
    "clipvalue",
    "global_clipnorm",
    "use_ema",
    "ema_momentum",
    "ema_overwrite_frequency",
    "loss_scale_factor",
    "gradient_accumulation_steps",
)
# What Muon and Lanton share beside.
KEPT_OF_MUON = (
    "nesterov",
    "ns_steps",
    "adam_lr_ratio",
    "adam_beta_1",
    "adam_beta_2",
    "epsilon",
)


@keras.saving.register_keras_serializable(package="keras_lanton")
class ScaledSchedule(keras.optimizers.schedules.LearningRateSchedule):  # type: ignore[misc]
    """Another schedule, times a factor.

    Args:
        schedule: A `keras.optimizers.schedules.LearningRateSchedule`.
        factor: Of the rate of every step.
    """

    def __init__(self, schedule: Any, factor: float) -> None:
        self.schedule = schedule
        self.factor = float(factor)

    def __call__(self, step: Any) -> Any:
        """The rate of a step."""
        return self.schedule(step) * self.factor

    def get_config(self) -> dict[str, Any]:
        """As JSON types."""
        schedule = keras.saving.serialize_keras_object(self.schedule)
        return {"schedule": schedule, "factor": self.factor}

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> "ScaledSchedule":
        """Inverse of `get_config`."""
        schedule = keras.saving.deserialize_keras_object(config["schedule"])
        return cls(schedule, config["factor"])


def from_adamw(adamw: Any, rate_factor: float) -> dict[str, Any]:
    """Lanton's arguments by those of AdamW or Adam.

    Args:
        adamw: A `keras.optimizers.AdamW` or `Adam`.
        rate_factor: Lanton's rate over AdamW's.

    Raises:
        ValueError: For another optimizer, or a learning rate that is neither
            a float nor a schedule.
    """
    if not isinstance(adamw, (keras.optimizers.AdamW, keras.optimizers.Adam)):
        raise ValueError(
            "`from_adamw` needs a `keras.optimizers.AdamW` or `Adam`. "
            f"Received: adamw={shown(adamw)}"
        )
    config = adamw.get_config()
    if config.get("amsgrad"):
        warnings.warn(
            "`amsgrad` has no counterpart in Lanton and is left out. "
            "Received: amsgrad=True",
            stacklevel=3,
        )
    return {
        **_kept(config),
        "learning_rate": rate_of(config, rate_factor),
        "adam_beta_1": config["beta_1"],
        "adam_beta_2": config["beta_2"],
        "epsilon": config["epsilon"],
    }


def from_muon(muon: Any) -> dict[str, Any]:
    """Lanton's arguments by those of Keras' Muon or `baselines.DMuon`.

    Args:
        muon: Whose hidden steps have an RMS that is a multiple of the rate.

    Raises:
        ValueError: For another optimizer, a Muon without `rms_rate`, or a
            learning rate that is neither a float nor a schedule.
    """
    if not (
        isinstance(muon, keras.optimizers.Muon)
        # Of the baselines, which stand beside Lanton and are not imported here.
        or type(muon).__name__ == "DMuon"
    ):
        raise ValueError(
            "`from_muon` needs a `keras.optimizers.Muon` or a "
            f"`keras_lanton.baselines.DMuon`. Received: muon={shown(muon)}"
        )
    config = muon.get_config()
    own = "hidden_scale" in config
    scale = config["hidden_scale"] if own else config.get("rms_rate")
    if scale is None:
        raise ValueError(
            "`from_muon` needs a Muon with `rms_rate`: without it the size of "
            "a step depends on the shape, see "
            "`keras_lanton.find_learning_rate`. Received: rms_rate=None"
        )
    if not own:
        _warn_of_muons_own(config)
    row = [config.get(f"muon_{x}") for x in "abc"]
    return {
        **_kept(config),
        **{name: config[name] for name in KEPT_OF_MUON},
        "learning_rate": rate_of(config),
        "hidden_scale": scale,
        "ns_coefficients": config["ns_coefficients"] if own else [row],
    }


def _warn_of_muons_own(config: Mapping[str, Any]) -> None:
    """Names what Keras' Muon was told and Lanton has no argument for."""
    left_out = []
    if config["exclude_layers"]:
        left_out.append(f"exclude_layers={config['exclude_layers']!r}")
    if config["adam_weight_decay"] != config["weight_decay"]:
        left_out.append(f"adam_weight_decay={config['adam_weight_decay']!r}")
    if left_out:
        warnings.warn(
            "Lanton moves all kernels by its own steps and decays all "
            "variables alike: see `assign_role` and `weight_decay_exclude`. "
            f"Left out: {', '.join(left_out)}",
            stacklevel=4,
        )


def _kept(config: Mapping[str, Any]) -> dict[str, Any]:
    return {name: config[name] for name in KEPT if name in config}


def rate_of(config: Mapping[str, Any], factor: float = 1.0) -> Any:
    """The learning rate of a config, a float or a schedule, times a factor.

    Args:
        config: Of a Keras optimizer.
        factor: Above 0.

    Raises:
        ValueError: For a learning rate that is neither.
    """
    rate = config["learning_rate"]
    if isinstance(rate, (int, float)):
        return float(rate) * factor
    try:
        found = keras.saving.deserialize_keras_object(rate)
    except ValueError:  # a lambda, which Keras does not restore
        found = None
    if not isinstance(found, keras.optimizers.schedules.LearningRateSchedule):
        raise ValueError(
            "The learning rate must be a float or a "
            "`keras.optimizers.schedules.LearningRateSchedule`. "
            f"Received: learning_rate={shown(rate)}"
        )
    return found if factor == 1.0 else ScaledSchedule(found, factor)
