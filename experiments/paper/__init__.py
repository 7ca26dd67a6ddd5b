"""The LANTON paper's experiments, on one's own machine.

`bench` trains what comparisons, robustness, measurements and ablations ask for,
at a scale of `scales`; `theory` tests the theorem on a quadratic; `report`
writes docs/paper.md.
"""
