"""The history of a training run: every loss term at every logging step."""

from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass
class History:
    """Means of the loss terms between logging steps.

    Losses are summed where they are computed and read only when logged, so that training does not wait for them.

    >>> history = History()
    >>> history.add({"cycle": torch.tensor(1.0)}); history.add({"cycle": torch.tensor(3.0)})
    >>> history.log(episode=2)
    {'cycle': 2.0}
    >>> history.episodes, history.losses
    ([2], {'cycle': [2.0]})
    """

    episodes: list[int] = field(default_factory=list)
    losses: dict[str, list[float]] = field(default_factory=dict)
    _sums: dict[str, Tensor] = field(default_factory=dict, repr=False)
    _steps: int = field(default=0, repr=False)

    def add(self, losses: dict[str, Tensor]) -> None:
        """Add the losses of one step."""
        for name, value in losses.items():
            self._sums[name] = self._sums[name] + value if name in self._sums else value
        self._steps += 1

    def log(self, episode: int) -> dict[str, float]:
        """Close a logging step and give its means."""
        means = dict(zip(self._sums, (torch.stack([*self._sums.values()]) / self._steps).tolist(), strict=True))
        self.episodes.append(episode)
        for name, mean in means.items():
            self.losses.setdefault(name, []).append(mean)
        self._sums, self._steps = {}, 0
        return means
