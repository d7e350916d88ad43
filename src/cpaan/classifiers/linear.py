"""Linear classifier: multinomial logistic regression, the benchmark's final classifier on network features.

B. Hariharan and R. Girshick, "Low-shot visual recognition by shrinking and hallucinating features", ICCV
2017, train it by SGD; here the same kind of objective is minimised to its unique solution, or where there is much
data as close to it as matters, without random numbers.
"""

import math
import warnings
from typing import Any, TypeAlias

import numpy as np
from sklearn.exceptions import ConvergenceWarning

from cpaan.classifiers.base import FloatArray, ScoreClassifier
from cpaan.classifiers.lbfgs import Minimum, minimize
from cpaan.classifiers.linear_problem import BlockProblem, ExactProblem, Examples, Problem, Solution, minimize_in_single
from cpaan.errors import InputError
from cpaan.threads import threads_for

Known: TypeAlias = dict[Any, tuple[FloatArray, float]]  # W_c and b_c by label

PRECISIONS = ("auto", "double", "single")
LARGE = 5 * 10**8  # examples × features × classes, from which "auto" means single precision
MOST = 0.75  # of the classes; where fewer are known, a warm start is hardly closer to the minimum than a cold one


class LinearClassifier(ScoreClassifier):
    """Multinomial logistic regression with weight decay and a free intercept.

    Minimises over W (classes × D) and b, with weights w_i (one by default),

    − Σ_i w_i log P(y_i given x_i) / Σ_i w_i + weight_decay / 2 · ‖W‖²_F

    score(c given x) = W_c · x + b_c,  P(c given x) = softmax over c of the scores

    which is scikit-learn's `LogisticRegression(C=1 / (n * weight_decay))` for three or more classes.

    Small problems are solved exactly, in double precision. Large ones are brought close enough to the minimum for
    the same accuracy, in single precision: a row block at a time, so that besides the examples and less than two
    copies of them in single precision memory does not grow with their number, and in at most `max_passes` passes. The
    search begins with a quarter of the examples and measures there how steep the objective is in which direction.

    Parameters
    ----------
    weight_decay : float, default=1e-3
        Strength of the penalty, 0 or more. At 0, classes that can be separated have no solution.
    max_iterations : int, default=1000
        Most steps of L-BFGS; a `ConvergenceWarning` tells where they were not enough.
    tolerance : float, default=1e-7
        Training stops when the norm of the gradient is no larger. The gradient is that of parameters brought
        to a common scale, so the number means the same for features in any unit. In single precision it also
        stops when twice in a row the next step promises to lower the objective by 3e-5 or less, where all
        classes count the same however few examples they have.
    precision : {"auto", "double", "single"}, default="auto"
        How to train. "auto" is single precision where examples × features × classes reach 5·10⁸ and there are at
        least as many examples as features.
    max_passes : int, default=40
        Most passes over the examples in single precision. Where they end the search, a `ConvergenceWarning` is
        given only if a further step promises to lower the objective by more than 5e-4, counted in the same way:
        less has hardly been seen to change test accuracy by 0.2 points.
    warm_start : bool, default=False
        Whether to begin with the solution of the last call to `fit` for the classes that it knew. Saves passes
        where some examples have changed, or classes have come or gone.

    Attributes
    ----------
    coef_ : ndarray of shape (n_classes, D)
        W, one row for each class, also where these are only two.
    intercept_ : ndarray of shape (n_classes,)
        The b whose entries sum to zero.
    n_iterations_ : int
        Steps taken.
    n_passes_ : int
        Passes over the examples, of which a step takes one or a few more; those over a part count as that part.
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

        Returns
        -------
        LinearClassifier
            Itself.
        """
        self._check_settings()
        known = self._known_solution()
        features, targets, weights = self._read_training_data(X, y, sample_weight, keep_single=True)
        # Other features than last time: nothing known is of use.
        known = {label: row for label, row in known.items() if len(row[0]) == self.n_features_in_}
        with threads_for(features.size * len(self.classes_)):
            problem, found = self._minimize(Examples(features, targets, weights / weights.sum()), known)
        if not found.converged:
            self._warn(found)
        self.n_iterations_, self.n_passes_ = found.iterations, found.evaluations
        self.coef_, self.intercept_ = problem.solution(found.point)
        return self

    def _minimize(self, examples: Examples, known: Known) -> tuple[Problem, Minimum]:
        if self._is_single(examples.features.shape):
            return self._minimize_in_single(examples, known)
        exact = examples.features.astype(np.float64, copy=False)
        problem = ExactProblem(exact, examples.targets, examples.shares, len(self.classes_), self.weight_decay)
        return problem, self._minimize_exactly(problem, known)

    def _minimize_exactly(self, problem: Problem, known: Known) -> Minimum:
        start = problem.point(self._warm(problem.guess(), known))
        return minimize(problem.objective, start, max_iterations=self.max_iterations, tolerance=self.tolerance)

    def _minimize_in_single(self, examples: Examples, known: Known) -> tuple[BlockProblem, Minimum]:
        n_known = len(known.keys() & set(self.classes_.tolist()))
        return minimize_in_single(
            examples,
            len(self.classes_),
            self.weight_decay,
            lambda guess: self._warm(guess, known),
            is_known=n_known >= MOST * len(self.classes_),
            tolerance=self.tolerance,
            max_iterations=self.max_iterations,
            max_passes=self.max_passes,
        )

    def _is_single(self, shape: tuple[int, ...]) -> bool:
        n, n_features = shape
        large = n >= n_features and n * n_features * len(self.classes_) >= LARGE
        return self.precision == "single" or (self.precision == "auto" and large)

    def _known_solution(self) -> Known:
        """Give W_c and b_c for each class of the last fit, if there was one and it counts."""
        if not (self.warm_start and hasattr(self, "coef_")):
            return {}
        return dict(zip(self.classes_.tolist(), zip(self.coef_, self.intercept_, strict=True), strict=True))

    def _warm(self, guess: Solution, known: Known) -> Solution:
        """Put what is known in the place of the guess."""
        for index, label in enumerate(self.classes_.tolist()):
            if label in known:
                guess.coef[index], guess.intercept[index] = known[label]
        return guess

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
        if self.precision not in PRECISIONS:
            raise InputError(f"precision is {self.precision!r}; give one of {', '.join(PRECISIONS)}")
        if not self.max_passes >= 1:
            raise InputError(f"max_passes is {self.max_passes}; give 1 or more")

    def _warn(self, found: Minimum) -> None:
        warnings.warn(
            f"the linear classifier has not converged in {found.iterations} steps and {found.evaluations} passes; "
            f"raise max_iterations ({self.max_iterations}), tolerance ({self.tolerance}), weight_decay "
            f"({self.weight_decay}) or, in single precision, max_passes ({self.max_passes})",
            ConvergenceWarning,
            stacklevel=3,
        )
