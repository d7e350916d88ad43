"""The training loop, its recipe and its history."""
