import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    """On a busy machine a second thread makes small tensor operations wait rather than quicker."""
    torch.set_num_threads(1)
