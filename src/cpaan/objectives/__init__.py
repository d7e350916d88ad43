"""The terms of the loss: adversarial, cycle-consistent, covariance-preserving."""
