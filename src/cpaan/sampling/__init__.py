"""What a training step sees: neighbourhoods of classes and the episodes drawn from them."""
