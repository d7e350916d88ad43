"""Accuracy, diversity and the low-shot protocols."""

from cpaan.evaluation.agreement import coverage, energy_distance
from cpaan.evaluation.diversity import covariance_distance, diversity, mean_pairwise_distance
from cpaan.evaluation.metrics import accuracy, harmonic_mean, top_k_accuracy
from cpaan.evaluation.protocol import LowShotScores, evaluate_low_shot

__all__ = [
    "LowShotScores",
    "accuracy",
    "covariance_distance",
    "coverage",
    "diversity",
    "energy_distance",
    "evaluate_low_shot",
    "harmonic_mean",
    "mean_pairwise_distance",
    "top_k_accuracy",
]
