"""The roles that AdamW updates in Muon, D-Muon and AdaMuon."""

from typing import Any

from keras_lanton.settings import ADAMW_ROLES
from keras_lanton.settings import AuxiliaryAdamW
from keras_lanton.validation import shown

BOTH = ADAMW_ROLES


def check_adamw_has_both(auxiliary_adamw: Any) -> None:
    """ValueError unless AdamW updates embeddings and vectors.

    Args:
        auxiliary_adamw: The argument of an optimizer that has a norm for
            hidden matrices only.
    """
    if not isinstance(auxiliary_adamw, AuxiliaryAdamW) or (
        set(auxiliary_adamw.roles) != set(BOTH)
    ):
        raise ValueError(
            f"`auxiliary_adamw` must be an `AuxiliaryAdamW` with roles={BOTH}: "
            "this optimizer has no other update for them. "
            f"Received: auxiliary_adamw={shown(auxiliary_adamw)}"
        )
