"""The polar factor of a matrix, and the fastest way to it here."""
