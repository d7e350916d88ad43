"""Accuracy, diversity and the low-shot protocols."""

from cpaan.evaluation.realism import covariance_distance, coverage, diversity, energy_distance, mean_pairwise_distance
from cpaan.evaluation.scores import LowShotScores, accuracy, evaluate_low_shot, harmonic_mean, top_k_accuracy

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
