"""What backbones are trained with: penalties on features, and the loss of prototypical networks.

B. Hariharan and R. Girshick, "Low-shot Visual Recognition by Shrinking and Hallucinating Features", ICCV 2017 (the
penalties); J. Snell, K. Swersky and R. S. Zemel, "Prototypical Networks for Few-shot Learning", NeurIPS 2017.
"""

from torch import Tensor
from torch.nn.functional import cross_entropy, one_hot

from cpaan.functional.prototypes import prototypes


def sgm_penalty(features: Tensor, logits: Tensor, labels: Tensor) -> Tensor:
    """Squared gradient magnitude: the mean of Σ_k (p_k − δ_{yk})² ‖φ‖² over examples.

    It is the squared norm of the gradient that an example's cross-entropy has with respect to a linear classifier, so
    features are favoured with which a classifier of few examples is already right.

    >>> import torch
    >>> sgm_penalty(torch.tensor([[3.0, 4.0]]), torch.zeros(1, 2), torch.tensor([0]))
    tensor(12.5000)
    """
    residuals = logits.softmax(1) - one_hot(labels, logits.shape[1])
    return (residuals.square().sum(1) * features.square().sum(1)).mean()


def l2_penalty(features: Tensor) -> Tensor:
    """Half the mean squared norm of features.

    >>> import torch
    >>> l2_penalty(torch.tensor([[3.0, 4.0], [0.0, 0.0]]))
    tensor(6.2500)
    """
    return features.square().sum(1).mean() / 2


def prototypical_logits(queries: Tensor, centers: Tensor, scale: Tensor | float) -> Tensor:
    """Scores of classes given their prototypes, −scale · ‖x − l_c‖².

    >>> import torch
    >>> prototypical_logits(torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 0.0], [1.0, 2.0]]), 0.5)
    tensor([[-0.5000, -2.0000]])
    """
    distances = queries.square().sum(1, keepdim=True) - 2 * queries @ centers.T + centers.square().sum(1)
    return -scale * distances


def prototypical_loss(
    support: Tensor,
    support_labels: Tensor,
    queries: Tensor,
    query_labels: Tensor,
    n_classes: int,
    scale: Tensor | float,
) -> tuple[Tensor, Tensor]:
    """Cross-entropy of queries under the prototypes of the support.

    Parameters
    ----------
    support, queries : Tensors of shape (n, D) and (m, D)
        Embedded examples.
    support_labels, query_labels : integer Tensors of shape (n,) and (m,)
        Their classes within the task; each class has at least one support example.
    n_classes : int
        N.
    scale : Tensor or float
        Of the squared distances.

    Returns
    -------
    loss, accuracy : Tensor
        The mean over queries of the cross-entropy, and the share of queries whose nearest prototype is the right one.
    """
    centers = prototypes(support, support_labels, n_classes)
    logits = prototypical_logits(queries, centers, scale)
    return cross_entropy(logits, query_labels), (logits.argmax(1) == query_labels).float().mean()
