"""The LANTON paper's experiments, on one's own machine.

`sweeps` has the runs, `theory` tests the theorem on a quadratic, `report`
writes docs/paper.md.
"""
