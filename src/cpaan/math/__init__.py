"""Pure tensor mathematics."""
