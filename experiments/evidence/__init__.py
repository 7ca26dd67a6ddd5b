"""Full-length comparisons of optimizers on small language models and a CNN.

`python -m experiments.evidence` trains what is missing and writes
docs/evidence.md. Every run leaves one file in benchmarks/results/evidence,
named after everything that decides its result: an interrupted command goes
on where it stopped, on any machine.
"""
