"""What not to look for doctests in."""

from importlib.util import find_spec

# Kernels cannot be imported without Triton, which comes with torch for CUDA.
collect_ignore = (
    [] if find_spec("triton") else ["src/cpaan/functional/small_kernels.py", "src/cpaan/nn/dense_kernels.py"]
)
