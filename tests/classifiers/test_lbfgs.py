"""The minimiser on functions with a known minimum."""

import numpy as np
import pytest
from scipy.optimize import minimize as scipy_minimize
from scipy.optimize import rosen, rosen_der

from cpaan.classifiers.lbfgs import FloatArray, minimize


def rosenbrock(x: FloatArray) -> tuple[float, FloatArray]:
    return float(rosen(x)), rosen_der(x)


def test_a_curved_valley_is_followed_to_its_end() -> None:
    start = np.zeros(6)
    found = minimize(rosenbrock, start, max_iterations=500, tolerance=1e-8)
    assert found.converged
    np.testing.assert_allclose(found.point, 1.0, rtol=1e-6)
    reference = scipy_minimize(lambda x: rosenbrock(x)[0], np.zeros(6), method="L-BFGS-B")
    assert found.value <= reference.fun
    assert not start.any()


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_an_ill_conditioned_quadratic_of_any_scale(scale: float) -> None:
    curvatures = scale * np.logspace(0, 4, 30)
    target = np.linspace(-1, 1, 30)

    def quadratic(x: FloatArray) -> tuple[float, FloatArray]:
        return float((curvatures * (x - target) ** 2).sum() / 2), curvatures * (x - target)

    found = minimize(quadratic, np.zeros(30), max_iterations=1000, tolerance=1e-6 * scale)
    assert found.converged
    np.testing.assert_allclose(found.point, target, atol=1e-5)


def test_it_stops_where_it_starts_when_there_is_nothing_to_gain() -> None:
    found = minimize(lambda x: (0.0, np.zeros(2)), np.ones(2), max_iterations=5, tolerance=1e-6)
    assert found.converged
    assert found.iterations == 0


def test_it_says_when_it_did_not_get_there() -> None:
    few = minimize(rosenbrock, np.zeros(4), max_iterations=3, tolerance=1e-8)
    assert (few.iterations, few.converged) == (3, False)
    # A gradient that points the wrong way leaves no step that leads down.
    wrong = minimize(lambda x: (float(x @ x), -2 * x), np.ones(2), max_iterations=9, tolerance=1e-6)
    assert not wrong.converged


def test_evaluations_are_counted_and_bounded() -> None:
    asked = []

    def counted(x: FloatArray) -> tuple[float, FloatArray]:
        asked.append(x)
        return rosenbrock(x)

    found = minimize(counted, np.zeros(4), max_iterations=500, tolerance=1e-8, max_evaluations=12)
    assert found.evaluations == len(asked) == 12
    assert not found.converged
    assert found.value == min(rosenbrock(x)[0] for x in asked)


@pytest.mark.parametrize("gain", [1e-2, 1e-5])
def test_it_stops_where_little_is_left_to_gain(gain: float) -> None:
    # With all curvatures known to be about one, what is promised is close to what is left.
    curvatures, target = np.linspace(0.5, 2.0, 40), np.linspace(-1, 1, 40)

    def quadratic(x: FloatArray) -> tuple[float, FloatArray]:
        return float((curvatures * (x - target) ** 2).sum() / 2), curvatures * (x - target)

    settings = {"max_iterations": 100, "tolerance": 1e-12, "unit_scale": True}
    found = minimize(quadratic, np.zeros(40), gain_tolerance=gain, **settings)  # type: ignore[arg-type]
    assert found.converged
    assert found.gain <= gain
    assert found.value <= 2 * gain
    assert found.evaluations < minimize(quadratic, np.zeros(40), **settings).evaluations  # type: ignore[arg-type]
