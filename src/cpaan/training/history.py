"""The history of a training run: every loss term at every logging step."""

from dataclasses import dataclass, field
from typing import Any

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
    _names: tuple[str, ...] = field(default=(), repr=False)
    _sums: Tensor = field(default_factory=lambda: torch.zeros(1), repr=False)  # of the terms, then the number of steps

    def add(self, losses: dict[str, Tensor]) -> None:
        """Add the losses of one step; a step after the first adds in place, as a captured graph must."""
        values = [*losses.values()]
        step = torch.stack([*values, values[0].new_ones(())])
        if self._names == tuple(losses) and self._sums.device == step.device:
            self._sums.add_(step)
        else:
            before = dict(zip(self._names, self._sums.tolist(), strict=False))
            steps = self._sums[-1].item()
            self._names = tuple(losses)
            self._sums = step + step.new_tensor([*(before.get(name, 0.0) for name in losses), steps])

    def state(self) -> dict[str, Any]:
        """Give everything as JSON can hold it, what was added since the last logging step included."""
        *sums, steps = self._sums.tolist()
        named = dict(zip(self._names, sums, strict=True))
        return {"episodes": self.episodes, "losses": self.losses, "sums": named, "steps": int(steps)}

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> "History":
        """Go on from what `state` gave.

        >>> history = History()
        >>> history.add({"cycle": torch.tensor(1.0)})
        >>> History.from_state(history.state()).log(1)
        {'cycle': 1.0}
        """
        sums = torch.tensor([*state["sums"].values(), state["steps"]], dtype=torch.float32)
        return cls(list(state["episodes"]), dict(state["losses"]), tuple(state["sums"]), sums)

    def log(self, episode: int) -> dict[str, float]:
        """Close a logging step and give its means."""
        *sums, steps = self._sums.tolist()
        means = {name: total / steps for name, total in zip(self._names, sums, strict=True)}
        self.episodes.append(episode)
        for name, mean in means.items():
            self.losses.setdefault(name, []).append(mean)
        self._sums.zero_()
        return means
