"""Noise and the rates that follow from it: lines 7 to 9 of Algorithm 1."""
