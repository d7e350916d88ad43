"""How exactly products are computed, while a context lasts and after it."""

from collections.abc import Iterator

import pytest
import torch

from cpaan.math.ky_fan_cuda import fast_products, full_precision


@pytest.fixture(params=[False, True])
def before(request: pytest.FixtureRequest) -> Iterator[bool]:
    usual = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = request.param
    yield request.param
    torch.backends.cuda.matmul.allow_tf32 = usual


def test_precision_is_as_asked_inside_and_as_before_outside(before: bool) -> None:
    matmul = torch.backends.cuda.matmul
    with fast_products():
        assert matmul.allow_tf32 is True
        with full_precision():
            assert matmul.allow_tf32 is False
        assert matmul.allow_tf32 is True
    assert matmul.allow_tf32 is before
    with pytest.raises(KeyError), fast_products():
        raise KeyError
    assert matmul.allow_tf32 is before
