"""What holds for all tests, doctests included: where not to look for doctests, one thread, and the same draws."""

import os
from importlib.util import find_spec

import pytest
import torch

# Kernels cannot be imported without Triton, which comes with torch for CUDA.
collect_ignore = [] if find_spec("triton") else ["src/cpaan/math/triton_kernels.py"]

# For the processes that tests start. On a busy machine a second thread makes small tensor operations wait.
os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.hookimpl(tryfirst=True)  # before any fixture, of whatever scope
def pytest_runtest_setup() -> None:
    """Let no test find what another left behind.

    pytest-randomly seeds Python and numpy, but not torch. And torch switches oneDNN off for the rest of a process when
    it fails once, as it may on ARM ("mkldnn_matmul failed, switching to BLAS gemm"): the same sums, in other bits.
    """
    torch.set_num_threads(1)
    torch.manual_seed(0)
    torch.backends.mkldnn.set_flags(True)
