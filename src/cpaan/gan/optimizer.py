"""One side of the adversarial game: its parameters, and how they are updated."""

import torch
from torch import Tensor, nn

from cpaan.training.weights import part_of


class Optimizer:
    """Adam for the networks of one side: their parameters in single precision, and the working copies that losses use.

    Working parameters are the same, or copies in another precision. The learning rate is a tensor, which may be filled
    with another rate later; momentum is β₁.
    """

    def __init__(
        self, parameters: list[nn.Parameter], working: list[nn.Parameter], learning_rate: Tensor, momentum: float
    ) -> None:
        self.parameters, self.working = parameters, working
        self.copies = bool(parameters) and working[0] is not parameters[0]
        device = learning_rate.device
        self.optimizer = torch.optim.Adam(
            parameters,
            learning_rate,
            (momentum, 0.999),
            fused=device.type in ("cpu", "cuda"),
            capturable=device.type == "cuda",
        )
        self.gradients = [torch.zeros_like(each) for each in parameters] if self.copies else []
        if self.copies:
            for parameter, gradient in zip(parameters, self.gradients, strict=True):
                parameter.grad = gradient

    def update(self, loss: Tensor) -> None:
        """Take one step; gradients of the other side are not computed."""
        for each in self.working:
            each.grad = None
        loss.backward(inputs=self.working)
        if not self.copies:
            self.optimizer.step()
            return
        with torch.no_grad():
            torch._foreach_copy_(self.gradients, [each.grad for each in self.working if each.grad is not None])
            self.optimizer.step()
            torch._foreach_copy_([*self.working], [*self.parameters])

    def state(self) -> dict[str, Tensor]:
        """Return Adam's memory of every parameter; there is none before the first update."""
        memory = self.optimizer.state_dict()["state"]
        return {f"{number}.{name}": value for number, of_one in memory.items() for name, value in of_one.items()}

    @torch.no_grad()
    def restore(self, tensors: dict[str, Tensor]) -> None:
        """Restore a state after the parameters; in place, as a captured graph requires."""
        for number, parameter in enumerate(self.parameters):
            memory, saved = self.optimizer.state[parameter], part_of(tensors, f"{number}.")
            for name, value in saved.items():
                if name not in memory:
                    memory[name] = torch.empty_like(value, device=self._place(name, parameter))
                memory[name].copy_(value)
            for name in memory.keys() - saved.keys():
                memory[name].zero_()
        if self.copies:
            torch._foreach_copy_([*self.working], [*self.parameters])

    def _place(self, name: str, parameter: Tensor) -> torch.device:
        # As Adam does: steps are counted on the host where nothing on the device reads them.
        counted_aside = name == "step" and parameter.device.type not in ("cpu", "cuda")
        return torch.device("cpu") if counted_aside else parameter.device
