"""The LANTON paper's experiments, on one's own machine.

`sweeps` has the runs, `report` writes docs/paper.md.
"""
