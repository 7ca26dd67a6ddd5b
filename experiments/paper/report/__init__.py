"""docs/paper.md, with its pictures, from the results of the experiments."""
