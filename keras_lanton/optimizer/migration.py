"""From another optimizer's settings to Lanton's."""

import warnings
from collections.abc import Mapping
from typing import Any

import keras

from keras_lanton.settings import AuxiliaryAdamW
from keras_lanton.settings import NewtonSchulz
from keras_lanton.validation import shown

# Lanton's rate over AdamW's, with updates of one RMS at any width; the paper's
# tables have 6 to 50. docs/guides/learning_rate.md has what it ended at.
RATE_OVER_ADAMW = 2.5
# Arguments that mean the same to every Keras optimizer.
KEPT = (
    "weight_decay",
    "weight_decay_exclude",
    "rate_multipliers",
    "clipnorm",
    "clipvalue",
    "global_clipnorm",
    "use_ema",
    "ema_momentum",
    "ema_overwrite_frequency",
    "loss_scale_factor",
    "gradient_accumulation_steps",
)


@keras.saving.register_keras_serializable(package="keras_lanton")
class ScaledSchedule(keras.optimizers.schedules.LearningRateSchedule):  # type: ignore[misc]
    """Another schedule, times a factor.

    Args:
        schedule: A `keras.optimizers.schedules.LearningRateSchedule`.
        factor: Factor on the rate of every step.
    """

    def __init__(self, schedule: Any, factor: float) -> None:
        self.schedule = schedule
        self.factor = float(factor)

    def __call__(self, step: Any) -> Any:
        """The rate of a step."""
        return self.schedule(step) * self.factor

    def get_config(self) -> dict[str, Any]:
        """Both arguments, as JSON types."""
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
        "step_scale": "rms_matched",
        "auxiliary_adamw": AuxiliaryAdamW(
            roles=("embedding", "vector"),
            lr_ratio=1.0 / rate_factor,
            beta_1=config["beta_1"],
            beta_2=config["beta_2"],
            epsilon=config["epsilon"],
            epsilon_before_debiasing=True,
        ),
    }


def from_muon(muon: Any) -> dict[str, Any]:
    """Lanton's arguments by those of Keras' Muon or `baselines.DMuon`.

    Args:
        muon: A Muon whose hidden updates have an RMS that is a multiple of
            the rate.

    Raises:
        ValueError: For another optimizer, a Muon without `rms_rate`, or a
            learning rate that is neither a float nor a schedule.
    """
    if isinstance(muon, keras.optimizers.Muon):
        found = _from_keras_muon(muon.get_config())
    elif getattr(muon, "hidden_rms", None) is not None:
        found = _from_own_muon(muon)
    else:
        raise ValueError(
            "`from_muon` needs a `keras.optimizers.Muon` or a "
            f"`keras_lanton.baselines.DMuon`. Received: muon={shown(muon)}"
        )
    config = muon.get_config()
    return {
        **_kept(config),
        "learning_rate": rate_of(config),
        "step_scale": "rms_matched",
        **found,
    }


def _from_own_muon(muon: Any) -> dict[str, Any]:
    """The arguments that an optimizer of this package shares with Lanton."""
    names = (
        "auxiliary_adamw",
        "momentum_dtype",
        "nesterov",
        "newton_schulz",
        "nonfinite",
        "rounding",
    )
    found = {name: getattr(muon, name) for name in names}
    return {**found, "hidden_scale": muon.hidden_rms}


def _from_keras_muon(config: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments that Keras' Muon shares with Lanton."""
    if config.get("rms_rate") is None:
        raise ValueError(
            "`from_muon` needs a Muon with `rms_rate`: without it the size of "
            "an update depends on the shape, see "
            "`keras_lanton.find_learning_rate`. Received: rms_rate=None"
        )
    if config["exclude_layers"]:
        warnings.warn(
            "Lanton orthogonalizes all kernels: see `assign_role`. Left out: "
            f"exclude_layers={config['exclude_layers']!r}",
            stacklevel=5,
        )
    if not config["exclude_embeddings"]:
        warnings.warn(
            "AdamW updates embeddings: see `assign_role`. Left out: "
            "exclude_embeddings=False",
            stacklevel=5,
        )
    # Keras decays at the base rate what AdamW updates.
    ratio, decay = config["adam_lr_ratio"], config["adam_weight_decay"] or 0.0
    row = tuple(config[f"muon_{x}"] for x in "abc")
    return {
        "nesterov": config["nesterov"],
        "hidden_scale": config["rms_rate"],
        "newton_schulz": NewtonSchulz(
            steps=config["ns_steps"], coefficients=(row,)
        ),
        "auxiliary_adamw": AuxiliaryAdamW(
            roles=("embedding", "vector"),
            lr_ratio=ratio,
            beta_1=config["adam_beta_1"],
            beta_2=config["adam_beta_2"],
            epsilon=config["epsilon"],
            weight_decay=decay / ratio if ratio else 0.0,
            epsilon_before_debiasing=True,
        ),
    }


def _kept(config: Mapping[str, Any]) -> dict[str, Any]:
    return {name: config[name] for name in KEPT if name in config}


def rate_of(config: Mapping[str, Any], factor: float = 1.0) -> Any:
    """The learning rate of a config, a float or a schedule, times a factor.

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
