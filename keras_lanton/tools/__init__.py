"""Tools for users: explanations, a learning-rate finder, a self-check."""
