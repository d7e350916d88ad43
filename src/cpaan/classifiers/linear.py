"""Linear classifier: multinomial logistic regression, the benchmark's final classifier on network features.

B. Hariharan and R. Girshick, "Low-shot visual recognition by shrinking and hallucinating features", ICCV 2017, train
it by SGD. Here the same kind of objective is minimised without random numbers to its unique solution, or with much
data as close to it as matters.
"""

import warnings
from typing import Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning

from cpaan.classifiers.base import FloatArray, ScoreClassifier, check_choice, check_not_negative
from cpaan.classifiers.linear_problem import Examples, Minimum, Solution, solve_exactly, solve_in_single
from cpaan.threads import threads_for
from cpaan.training.progress import check_count, check_positive

PRECISIONS = ("auto", "double", "single")
LARGE = 5 * 10**8  # examples × features × classes, from which "auto" means single precision


class LinearClassifier(ScoreClassifier):
    """Multinomial logistic regression with weight decay and a free intercept.

    Minimises over W (classes × D) and b, with weights w_i (one by default),

    − Σ_i w_i log P(y_i given x_i) / Σ_i w_i + weight_decay / 2 · ‖W‖²_F

    score(c given x) = W_c · x + b_c,  P(c given x) = softmax over c of the scores

    which is scikit-learn's `LogisticRegression(C=1 / (n * weight_decay))` for three or more classes.

    Small problems are solved exactly, in double precision. Large ones are solved closely enough for the same accuracy,
    in single precision and at most `max_passes` passes over row blocks of the examples. This takes less than two
    copies of the examples in single precision; other memory does not grow with their number. The search begins with a
    quarter of the examples and measures there how steep the objective is in which direction.

    Parameters
    ----------
    weight_decay : float, default=1e-3
        Strength of the penalty, 0 or more. At 0, separable classes have no solution.
    max_iterations : int, default=1000
        Maximum number of L-BFGS steps; a `ConvergenceWarning` is given if they were not enough.
    tolerance : float, default=1e-7
        Training stops when no entry of the gradient is larger. The gradient is that of parameters on a common scale,
        so the number means the same for features in any unit. In single precision training also stops when one more
        step promises to lower the objective by 3e-5 or less, counting all classes the same however few examples they
        have.
    precision : {"auto", "double", "single"}, default="auto"
        How to train. "auto" means single precision if examples × features × classes reach 5·10⁸ and there are at
        least as many examples as features.
    max_passes : int, default=40
        Maximum number of passes over the examples in single precision. A search that they end gives a
        `ConvergenceWarning` only if one more step promises to lower the objective by more than 5e-4, counted in the
        same way: less has hardly been seen to change test accuracy by 0.2 points.
    warm_start : bool, default=False
        Whether to start from the solution of the last call to `fit` for the classes that it knew. Saves passes if
        some examples have changed, or classes have come or gone.

    Attributes
    ----------
    coef_ : ndarray of shape (n_classes, D)
        W, one row for each class, even if there are only two.
    intercept_ : ndarray of shape (n_classes,)
        The b whose entries sum to zero.
    n_iterations_ : int
        Number of steps taken.
    n_passes_ : int
        Number of passes over the examples, one or a few more per step; passes over a part count as that part.
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
    n_passes_: int

    def __init__(
        self,
        *,
        weight_decay: float = 1e-3,
        max_iterations: int = 1000,
        tolerance: float = 1e-7,
        precision: str = "auto",
        max_passes: int = 40,
        warm_start: bool = False,
    ) -> None:
        self.weight_decay = weight_decay
        self.max_iterations = max_iterations
        self.tolerance = tolerance
        self.precision = precision
        self.max_passes = max_passes
        self.warm_start = warm_start

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
        """
        check_not_negative("weight_decay", self.weight_decay)
        check_count("max_iterations", self.max_iterations)
        check_positive("tolerance", self.tolerance)
        check_choice("precision", self.precision, PRECISIONS)
        check_count("max_passes", self.max_passes)
        rows = self._last_rows()
        features, targets, weights = self._read_training_data(X, y, sample_weight, keep_single=True)
        with threads_for(features.size * len(self.classes_)):
            found = self._solve(Examples(features, targets, weights / weights.sum()), self._known(rows))
        if not found.converged:
            self._warn(found)
        self.n_iterations_, self.n_passes_ = found.iterations, found.passes
        self.coef_, self.intercept_ = found.solution
        return self

    def _solve(self, examples: Examples, known: Solution) -> Minimum:
        settings: dict[str, Any] = {
            name: getattr(self, name) for name in ("weight_decay", "tolerance", "max_iterations")
        }
        n, n_features = examples.features.shape
        large = n >= n_features and n * n_features * len(self.classes_) >= LARGE
        if self.precision == "single" or (self.precision == "auto" and large):
            return solve_in_single(examples, known, max_passes=self.max_passes, **settings)
        return solve_exactly(examples, known, **settings)

    def _last_rows(self) -> dict[Any, FloatArray]:
        """Give W_c and b_c by label, for each class of the last fit if this one starts from it."""
        if not (self.warm_start and hasattr(self, "coef_")):
            return {}
        return dict(zip(self.classes_.tolist(), np.column_stack([self.coef_, self.intercept_]), strict=True))

    def _known(self, rows: dict[Any, FloatArray]) -> Solution:
        """Give the last solution of the classes that it knew with as many features, and NaN for the others."""
        known = np.full((len(self.classes_), self.n_features_in_ + 1), np.nan)
        for index, label in enumerate(self.classes_.tolist()):
            if label in rows and len(rows[label]) == known.shape[1]:
                known[index] = rows[label]
        return Solution(known[:, :-1], known[:, -1])

    def _score(self, X: FloatArray) -> FloatArray:
        scores: FloatArray = X @ self.coef_.T
        scores += self.intercept_
        return scores

    def _warn(self, found: Minimum) -> None:
        warnings.warn(
            f"the linear classifier has not converged in {found.iterations} steps and {found.passes} passes; "
            f"raise max_iterations ({self.max_iterations}), tolerance ({self.tolerance}), weight_decay "
            f"({self.weight_decay}) or, in single precision, max_passes ({self.max_passes})",
            ConvergenceWarning,
            stacklevel=3,
        )
