"""Features in units that do not depend on where they come from: about zero, with a mean square of one."""

import torch
from torch import Tensor

from cpaan.functional.scaling import ROUNDING, Scaling


def fit_standardization(features: Tensor) -> Scaling:
    """Choose x → (x − mean) / s, where s² is the mean over all entries of their squared deviation.

    One factor for all features, so that directions and ratios of distances stay as they are. Features that do not
    vary at all are divided by the largest of them. In double precision any scale from 1e-150 to 1e150 is fine.

    Parameters
    ----------
    features : Tensor of shape (n, D)

    >>> scaling = fit_standardization(torch.tensor([[1.0, 5.0], [3.0, 9.0]], dtype=torch.float64))
    >>> scaling.origin, round(scaling.factor ** -2, 6)
    (tensor([2., 7.], dtype=torch.float64), 2.5)
    """
    largest = float(features.abs().max())
    if largest == 0:
        return Scaling(torch.zeros_like(features[0]), 1.0)
    origin = features.mean(0)
    spread = float(((features - origin) / largest).square().mean().sqrt())
    return Scaling(origin, 1 / largest if spread < ROUNDING else 1 / (largest * spread))
