"""Sources of deviations from a class centre."""

from collections.abc import Callable
from functools import partial

from cpaan.deviations.base import Deviations, NoDeviations, Request
from cpaan.deviations.gaussian import Gaussian
from cpaan.deviations.transfer import Transfer
from cpaan.deviations.translated import Translated
from cpaan.gan.objective import VARIANTS

DEVIATIONS: dict[str, Callable[[], Deviations]] = {
    "none": NoDeviations,
    "gaussian": Gaussian,
    "transfer": Transfer,
    **{variant: partial(Translated, variant=variant) for variant in VARIANTS},
}

__all__ = ["DEVIATIONS", "Deviations", "Gaussian", "NoDeviations", "Request", "Transfer", "Translated"]
