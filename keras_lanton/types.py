"""Names that the whole package uses; imports nothing of it."""

from typing import Any

# A tensor of whatever backend Keras runs on.
Tensor = Any
# A `keras.Variable`; on TensorFlow sometimes a bare `tf.Variable`.
Variable = Any
# The state of an optimizer during a step, by name.
State = dict[str, Any]

# One row of Newton-Schulz: p(x) = a x + b x^3 + c x^5.
Row = tuple[float, float, float]

ROLES = ("hidden", "embedding", "vector")
