"""Limited-memory BFGS, for smooth convex functions.

J. Nocedal, "Updating quasi-Newton matrices with limited storage", Mathematics of Computation, 1980; the line
search is the bisection of A. S. Lewis and M. L. Overton, "Nonsmooth optimization via quasi-Newton methods",
Mathematical Programming, 2013.

In NumPy and not by `torch.optim.LBFGS`: the first optimiser of a process loads torch's compiler, which takes
longer than fitting a classifier, and torch wakes all threads for each of the many short vector operations
here, which costs far more than the work itself where other processes are busy.
"""

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

FloatArray: TypeAlias = npt.NDArray[np.float64]
Objective: TypeAlias = Callable[[FloatArray], tuple[float, FloatArray]]
History: TypeAlias = deque[tuple[FloatArray, FloatArray, float]]  # s, r and s · r

SUFFICIENT_DECREASE, CURVATURE = 1e-4, 0.9
MOST_TRIALS = 40


@dataclass(frozen=True)
class Minimum:
    """Where the search ended.

    Besides the point and the value there: the steps taken, how often the objective was asked, the larger decrease
    that was promised (by importance) at this point and the one before, and whether a tolerance was met.
    """

    point: FloatArray
    value: float
    iterations: int
    evaluations: int
    gain: float
    converged: bool


@dataclass(frozen=True)
class _State:
    point: FloatArray
    value: float
    gradient: FloatArray


def minimize(
    objective: Objective,
    start: FloatArray,
    *,
    max_iterations: int,
    tolerance: float,
    gain_tolerance: float = 0.0,
    importance: FloatArray | float = 1.0,
    max_evaluations: float = math.inf,
    unit_scale: bool = False,
    history_size: int = 10,
    history: History | None = None,
) -> Minimum:
    """Minimise a smooth function.

    x ← x − t H g, where H is built from the last few pairs s = x' − x, r = g' − g so that H r = s holds for
    the newest one, and t meets the (weak) Wolfe conditions.

    Parameters
    ----------
    objective : callable
        Gives value and gradient at a point.
    start : ndarray
        Where to begin, of any shape.
    max_iterations : int
        Most steps to take.
    tolerance : float
        Stop when the Euclidean norm of the gradient is no larger. Like every step before it, this does not
        depend on the choice of an orthonormal basis.
    gain_tolerance : float, default=0.0
        Stop also when g · H g / 2, the decrease that is left if H is the inverse of the Hessian, is no larger
        at two points in a row.
    importance : ndarray or float, default=1.0
        How much the part of each column of the parameters in that decrease counts.
    max_evaluations : float, default=inf
        How often the objective may be asked.
    unit_scale : bool, default=False
        Whether the coordinates are such that curvatures are about one, so that −g is a good first step.
    history_size : int, default=10
        How many pairs to remember.
    history : deque, optional
        Pairs to begin with, from a search on a function of much the same curvature; new ones are added.

    Returns
    -------
    Minimum
        Not converged where steps or evaluations ran out, or where rounding leaves nothing to gain.

    Examples
    --------
    >>> target = np.array([1.0, 2.0])
    >>> found = minimize(lambda x: (float(((x - target) ** 2).sum()), 2 * (x - target)), np.zeros(2),
    ...                  max_iterations=20, tolerance=1e-5)
    >>> found.point.round(6), found.converged
    (array([1., 2.]), True)
    """
    counted = _Counted(objective, max_evaluations)
    state = _State(start, *counted(start))
    history = deque(maxlen=history_size) if history is None else history
    last_gain = math.inf
    for iteration in range(max_iterations + 1):
        direction = _direction(state.gradient, history)
        this_gain = _gain(state.gradient, direction, importance)
        # One small gain may be luck: before there is any history, H knows nothing of flat directions.
        gain, last_gain = max(this_gain, last_gain), this_gain
        converged = _norm(state.gradient) <= tolerance or gain <= gain_tolerance
        ended = Minimum(state.point, state.value, iteration, counted.count, gain, converged)
        if converged or iteration == max_iterations:
            break
        # Without curvature the scale of the gradient means nothing: begin with a step of length one or less.
        first_step = 1.0 if history or unit_scale else min(1.0, 1.0 / _norm(state.gradient))
        reached = _line_search(counted, state, direction, first_step)
        if reached is None:
            return replace(ended, evaluations=counted.count)
        step, change = reached.point - state.point, reached.gradient - state.gradient
        history.append((step, change, _dot(step, change)))
        state = reached
    return ended


def _gain(gradient: FloatArray, direction: FloatArray, importance: FloatArray | float) -> float:
    parts = np.abs((gradient * direction).sum(axis=0))  # a single column may promise an increase
    return float((importance * parts).sum()) / 2


class _Counted:
    """An objective that counts how often it is asked."""

    def __init__(self, objective: Objective, most: float) -> None:
        self.objective, self.most, self.count = objective, most, 0

    def __call__(self, point: FloatArray) -> tuple[float, FloatArray]:
        self.count += 1
        return self.objective(point)


def _direction(gradient: FloatArray, history: History) -> FloatArray:
    """Apply −H to the gradient (the two-loop recursion)."""
    direction = -gradient
    shares = []
    for step, change, curvature in reversed(history):
        share = _dot(step, direction) / curvature
        shares.append(share)
        direction = direction - share * change
    if history:
        _, change, curvature = history[-1]
        direction = direction * (curvature / _dot(change, change))
    for (step, change, curvature), share in zip(history, reversed(shares), strict=True):
        direction = direction + (share - _dot(change, direction) / curvature) * step
    return direction


def _line_search(objective: _Counted, state: _State, direction: FloatArray, length: float) -> _State | None:
    """Find a point that is lower and flatter along the direction, by doubling and halving."""
    slope = _dot(state.gradient, direction)
    # Close to the minimum the decrease drowns in rounding; the curvature condition still leads on.
    slack = 4 * np.finfo(np.float64).eps * abs(state.value)
    shortest, longest = 0.0, float("inf")
    trials = int(min(MOST_TRIALS, objective.most - objective.count))
    for _ in range(trials if slope < 0 else 0):
        point = state.point + length * direction
        trial = _State(point, *objective(point))
        # Written so that a value of NaN or infinity counts as too far.
        if not trial.value <= state.value + SUFFICIENT_DECREASE * length * slope + slack:
            longest = length
        elif _dot(trial.gradient, direction) < CURVATURE * slope:
            shortest = length
        else:
            return trial
        length = (shortest + longest) / 2 if longest < float("inf") else 2 * shortest
    return None


def _dot(left: FloatArray, right: FloatArray) -> float:
    # einsum stays in one thread; BLAS would wake the others for a few microseconds of work.
    return float(np.einsum("i,i->", left.ravel(), right.ravel()))


def _norm(values: FloatArray) -> float:
    return math.sqrt(_dot(values, values))
