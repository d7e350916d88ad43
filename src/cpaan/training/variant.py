"""The paper's four variants: which terms the loss has and where the noise comes from."""

from dataclasses import dataclass

from cpaan.errors import InputError


@dataclass(frozen=True)
class Variant:
    """What sets one of the paper's networks apart.

    Attributes
    ----------
    cycle : there is a way back, with a game and a cycle-consistency term of its own
    mixture_noise : the noise of the way back is a trained Gaussian mixture
    covariance : the covariance of the related base classes is preserved
    title : how the paper writes its name
    """

    cycle: bool = False
    mixture_noise: bool = False
    covariance: bool = False
    title: str = ""


VARIANTS = {
    "c-gan": Variant(title="c-GAN"),
    "ccyc-gan": Variant(title="cCyc-GAN", cycle=True),
    "cdeli-gan": Variant(title="cDeLi-GAN", cycle=True, mixture_noise=True),
    "ccov-gan": Variant(title="cCov-GAN", cycle=True, covariance=True),
}


def find_variant(name: str) -> Variant:
    """Look a variant up by name.

    >>> find_variant("ccov-gan").covariance
    True
    """
    if name not in VARIANTS:
        raise InputError(f"unknown variant {name!r}; choose one of {', '.join(VARIANTS)}")
    return VARIANTS[name]
