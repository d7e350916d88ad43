"""Linear classifier: multinomial logistic regression, the benchmark's final classifier on network features.

B. Hariharan and R. Girshick, "Low-shot visual recognition by shrinking and hallucinating features", ICCV
2017, train it by SGD; here the same kind of objective is minimised to its unique solution,
without random numbers.
"""

import math
import warnings
from typing import Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning

from cpaan.classifiers.base import FloatArray, IntegerArray, ScoreClassifier
from cpaan.classifiers.lbfgs import Objective, minimize
from cpaan.errors import InputError


class LinearClassifier(ScoreClassifier):
    """Multinomial logistic regression with weight decay and a free intercept.

    Minimises over W (classes × D) and b, with weights w_i (one by default),

    − Σ_i w_i log P(y_i given x_i) / Σ_i w_i + weight_decay / 2 · ‖W‖²_F

    score(c given x) = W_c · x + b_c,  P(c given x) = softmax over c of the scores

    which is scikit-learn's `LogisticRegression(C=1 / (n * weight_decay))` for three or more classes.

    Parameters
    ----------
    weight_decay : float, default=1e-3
        Strength of the penalty, 0 or more. At 0, classes that can be separated have no solution.
    max_iterations : int, default=1000
        Most steps of L-BFGS; a `ConvergenceWarning` tells where they were not enough.
    tolerance : float, default=1e-7
        Training stops when the norm of the gradient is no larger. The gradient is that of parameters brought
        to a common scale, so the number means the same for features in any unit.

    Attributes
    ----------
    coef_ : ndarray of shape (n_classes, D)
        W, one row for each class, also where these are only two.
    intercept_ : ndarray of shape (n_classes,)
        The b whose entries sum to zero.
    n_iterations_ : int
        Steps taken.
    classes_ : ndarray of shape (n_classes,)
        The labels, sorted.
    n_features_in_ : int
        Number of features.

    Examples
    --------
    >>> classifier = LinearClassifier(weight_decay=0.01)
    >>> classifier = classifier.fit([[0.0], [1.0], [4.0], [5.0]], ["low", "low", "high", "high"])
    >>> classifier.predict([[2.0], [3.0]])
    array(['low', 'high'], dtype='<U4')
    >>> classifier.predict_proba([[2.5]]).round(3)
    array([[0.5, 0.5]])
    """

    coef_: FloatArray
    intercept_: FloatArray
    n_iterations_: int

    def __init__(self, *, weight_decay: float = 1e-3, max_iterations: int = 1000, tolerance: float = 1e-7) -> None:
        self.weight_decay = weight_decay
        self.max_iterations = max_iterations
        self.tolerance = tolerance

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> "LinearClassifier":
        """Minimise the objective.

        Parameters
        ----------
        X : array-like of shape (n, D)
            Examples.
        y : array-like of shape (n,)
            Their labels.
        sample_weight : array-like of shape (n,), optional
            Non-negative weights, of which only the ratios matter.

        Returns
        -------
        LinearClassifier
            Itself.
        """
        self._check_settings()
        features, targets, weights = self._read_training_data(X, y, sample_weight)
        n_classes, shares = len(self.classes_), weights / weights.sum()
        # Subtracting the mean only renames the intercept, which is not penalised, and shortens the search.
        mean = shares @ features
        design, basis = _reduce(features - mean)
        scale = _common_scale(design, shares, len(basis), n_classes, self.weight_decay)
        design = np.column_stack([design / scale, np.ones(len(design))])
        penalty = np.full((design.shape[1], 1), self.weight_decay / scale**2)
        penalty[-1] = 0
        found = minimize(
            _objective(design, targets, shares, penalty),
            np.zeros((design.shape[1], n_classes)),
            max_iterations=self.max_iterations,
            tolerance=self.tolerance,
        )
        if not found.converged:
            self._warn(found.iterations)
        self.n_iterations_ = found.iterations
        self.coef_ = np.ascontiguousarray((basis @ found.point[:-1] / scale).T)
        self.intercept_ = found.point[-1] - self.coef_ @ mean
        return self

    def _score(self, X: FloatArray) -> FloatArray:
        scores: FloatArray = X @ self.coef_.T
        scores += self.intercept_
        return scores

    def _check_settings(self) -> None:
        if not 0 <= self.weight_decay < math.inf:
            raise InputError(f"weight_decay is {self.weight_decay}; give a finite number of 0 or more")
        if not self.max_iterations >= 1:
            raise InputError(f"max_iterations is {self.max_iterations}; give 1 or more")
        if not self.tolerance > 0:
            raise InputError(f"tolerance is {self.tolerance}; give a positive number")

    def _warn(self, iterations: int) -> None:
        warnings.warn(
            f"the linear classifier has not converged in {iterations} steps; raise max_iterations "
            f"({self.max_iterations}), tolerance ({self.tolerance}) or weight_decay ({self.weight_decay})",
            ConvergenceWarning,
            stacklevel=3,
        )


def _reduce(centred: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Rotate into the span of the examples where these are fewer than the dimensions.

    The best W lies in that span, because any part of it outside costs weight decay and changes no score; an
    orthonormal basis leaves ‖W‖_F as it is. Without it, five shots in 2048 dimensions pay for all 2048.
    """
    if len(centred) >= centred.shape[1]:
        return centred, np.eye(centred.shape[1])
    basis, _ = np.linalg.qr(centred.T)
    return centred @ basis, basis


def _common_scale(
    centred: FloatArray, shares: FloatArray, n_features: int, n_classes: int, weight_decay: float
) -> float:
    """One factor that gives W about the same curvature as b, which lets L-BFGS take steps in both at once.

    Where all classes are equally likely the curvature is 1 / classes for b, and variance / classes +
    weight_decay for W. The variance along a direction lies between the mean over features and D times that;
    their geometric mean took fewer steps than either on features of ResNet-10 and MiniLM.
    """
    total_variance = float(shares @ np.square(centred).sum(axis=1))
    scale = math.sqrt(total_variance / math.sqrt(n_features) + n_classes * weight_decay)
    return scale if scale > 0 else 1.0


def _objective(design: FloatArray, targets: IntegerArray, shares: FloatArray, penalty: FloatArray) -> Objective:
    rows = np.arange(len(targets))

    def objective(parameters: FloatArray) -> tuple[float, FloatArray]:
        scores = design @ parameters
        scores -= scores.max(axis=1, keepdims=True)
        own = scores[rows, targets]
        exponentials = np.exp(scores, out=scores)
        totals = exponentials.sum(axis=1)
        decay = penalty * parameters
        value = (decay * parameters).sum() / 2 + shares @ (np.log(totals) - own)
        residuals = exponentials
        residuals *= (shares / totals)[:, np.newaxis]
        residuals[rows, targets] -= shares
        return float(value), design.T @ residuals + decay

    return objective
