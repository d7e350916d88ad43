"""What all trainings share: banks of examples, devices, weights, progress and checkpoints."""
