"""From images to features: reading, augmenting and encoding them."""
