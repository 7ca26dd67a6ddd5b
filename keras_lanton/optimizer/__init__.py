"""The Keras side, and the one step of all optimizers with an LMO."""
