"""Accuracy, diversity and the low-shot protocols."""
