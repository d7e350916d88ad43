"""Cosine classifier: class weights compared with examples by their angle alone.

W.-Y. Chen, Y.-C. Liu, Z. Kira, Y.-C. F. Wang, J.-B. Huang, "A closer look at few-shot classification", ICLR 2019
(Baseline++), train such weights on the examples at hand; H. Qi, M. Brown, D. G. Lowe, "Low-shot learning with
imprinted weights", CVPR 2018, provide the starting point: the normalised mean of a class's normalised examples.
"""

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from scipy.optimize import minimize

from cpaan.classifiers.base import FloatArray, IntegerArray, ScoreClassifier, cross_entropy_to_residuals
from cpaan.classifiers.nearest_prototype import weighted_class_means
from cpaan.threads import threads_for
from cpaan.training.progress import check_count, check_positive

Matrix: TypeAlias = npt.NDArray[np.floating]

# NOTE[paper]: Baseline++ takes steps of SGD in which every example counts the same, on features that are not centred.
# Here classes count the same, since base classes have hundreds of examples and novel ones a few; features are centred
# first; the scale is 5, chosen on given features; and L-BFGS needs no learning rate.
LARGE = 10**8  # examples × features × classes, from which single precision is exact enough and twice as fast
BLOCK_ENTRIES = 2**20
# Largest entry of a gradient with nothing left to learn, or in single precision nothing but rounding.
FLAT, FLAT_IN_SINGLE = 1e-8, 1e-6


class CosineClassifier(ScoreClassifier):
    """Classify by the cosine between an example and one trained weight vector for each class.

    With x̂ = (x − m) / ‖x − m‖ and ŵ = w / ‖w‖,

    score(c given x) = scale · x̂ · ŵ_c,  P(c given x) = softmax over c of the scores

    Training starts at w_c = the mean of the class's x̂ and takes steps of L-BFGS on the cross-entropy, in which every
    class counts the same however many examples it has, and within a class example i counts by its weight v_i:

    − (1 / classes) Σ_c Σ_{i: y_i = c} v_i log P(c given x_i) / Σ_{i: y_i = c} v_i

    Weights of any length give the same scores and need no weight decay. The fixed scale, which bounds the scores, and
    the small number of steps keep a class with one example from being memorised.

    Parameters
    ----------
    scale : float, default=5
        Scale of the scores; the larger it is, the more training attends to examples near the border of two classes.
        On sentence embeddings and network features 10 gained base accuracy and lost more with one shot.
    max_iterations : int, default=20
        Maximum number of L-BFGS steps; 0 keeps the imprinted weights.
    center : bool, default=True
        Whether m is the mean of the class means, rather than zero. Features that are all positive lie within a narrow
        cone; seen from its middle, angles separate classes much better.

    Attributes
    ----------
    weights_ : ndarray of shape (n_classes, D)
        ŵ_c, of length one (zero for a class that lies at m), in the order of `classes_`.
    mean_ : ndarray of shape (D,)
        m.
    n_iterations_ : int
        Number of steps taken.
    classes_ : ndarray of shape (n_classes,)
        The labels, sorted.
    n_features_in_ : int
        Number of features.

    Examples
    --------
    >>> classifier = CosineClassifier(scale=10.0, center=False, max_iterations=0)
    >>> classifier = classifier.fit([[2.0, 0.0], [0.0, 3.0]], ["east", "north"])
    >>> classifier.predict([[9.0, 1.0], [1.0, 1.5]])
    array(['east', 'north'], dtype='<U5')
    >>> classifier.scores([[0.0, 5.0]])
    array([[ 0., 10.]])
    """

    weights_: FloatArray
    mean_: FloatArray
    n_iterations_: int

    def __init__(self, *, scale: float = 5.0, max_iterations: int = 20, center: bool = True) -> None:
        self.scale = scale
        self.max_iterations = max_iterations
        self.center = center

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> "CosineClassifier":
        """Imprint the weights and train them.

        Parameters
        ----------
        X : array-like of shape (n, D)
            Examples.
        y : array-like of shape (n,)
            Their labels.
        sample_weight : array-like of shape (n,), optional
            Non-negative weights, of which only the ratios within a class matter.
        """
        check_positive("scale", self.scale)
        check_count("max_iterations", self.max_iterations, least=0)
        features, targets, weights = self._read_training_data(X, y, sample_weight)
        n_classes = len(self.classes_)
        means = weighted_class_means(features, targets, weights, n_classes)
        self.mean_ = means.mean(axis=0) if self.center else np.zeros(features.shape[1])
        directions = normalized(features - self.mean_)
        shares = weights / np.bincount(targets, weights)[targets] / n_classes
        start = normalized(weighted_class_means(directions, targets, weights, n_classes))
        problem = CosineProblem(directions, targets, shares, self.scale)
        with threads_for(directions.size * n_classes):
            found, self.n_iterations_ = problem.minimize(start, self.max_iterations)
        self.weights_ = normalized(found)
        return self

    def _score(self, X: FloatArray) -> FloatArray:
        scores: FloatArray = normalized(X - self.mean_) @ self.weights_.T
        scores *= self.scale
        return scores


class CosineProblem:
    """The objective of the weights: value and gradient, one block of rows at a time.

    With g_c = Σ_i s_i scale (P(c given x_i) − [y_i = c]) x̂_i and shares s_i that sum to one, the derivative by w_c is
    the part of g_c at right angles to w_c, divided by ‖w_c‖. A weight of length zero has all scores zero, and stays.
    """

    def __init__(self, directions: FloatArray, targets: IntegerArray, shares: FloatArray, scale: float) -> None:
        n_classes = int(targets.max()) + 1
        large = directions.size * n_classes >= LARGE
        self.directions: Matrix = directions.astype(np.float32 if large else np.float64)
        self.tolerance = FLAT_IN_SINGLE if large else FLAT
        self.targets, self.shares, self.scale = targets, shares.astype(self.directions.dtype), scale
        self.block_rows = max(1, BLOCK_ENTRIES // max(n_classes, directions.shape[1]))

    def minimize(self, start: FloatArray, max_iterations: int) -> tuple[FloatArray, int]:
        """Take steps of L-BFGS; give the weights and the number of steps."""
        if not max_iterations:
            return start, 0

        def objective(flat: FloatArray) -> tuple[float, FloatArray]:
            value, gradient = self.objective(flat.reshape(start.shape))
            return value, gradient.ravel()

        options = {"maxiter": max_iterations, "maxfun": 2 * max_iterations + 1, "gtol": self.tolerance, "ftol": 0.0}
        found = minimize(objective, start.ravel(), jac=True, method="L-BFGS-B", options=options)
        return found.x.reshape(start.shape), found.nit

    def objective(self, weights: FloatArray) -> tuple[float, FloatArray]:
        """Give value and gradient."""
        units = normalized(weights)
        columns = (self.scale * units.T).astype(self.directions.dtype)
        value, gradient = 0.0, np.zeros_like(weights)
        for start in range(0, len(self.targets), self.block_rows):
            rows = slice(start, start + self.block_rows)
            block = self.directions[rows]
            scores = block @ columns
            value += cross_entropy_to_residuals(scores, self.targets[rows], self.shares[rows])
            gradient += scores.T @ block
        gradient *= self.scale
        gradient -= (gradient * units).sum(axis=1, keepdims=True) * units
        lengths = _lengths(weights)
        return value, np.divide(gradient, lengths, out=np.zeros_like(gradient), where=lengths > 0)


def normalized(vectors: FloatArray) -> FloatArray:
    """Scale rows to length one; a row of zeros stays as it is."""
    # First by the largest entry, because squares of very small or large ones are zero or infinite.
    largest = np.abs(vectors).max(axis=1, keepdims=True)
    vectors = np.divide(vectors, largest, out=np.zeros_like(vectors), where=largest > 0)
    lengths = _lengths(vectors)
    return np.divide(vectors, lengths, out=vectors, where=lengths > 0)


def _lengths(vectors: FloatArray) -> FloatArray:
    lengths: FloatArray = np.sqrt(np.square(vectors).sum(axis=1, keepdims=True))
    return lengths
