"""What the tests share: models, optimizers, variables, processes."""
