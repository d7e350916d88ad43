"""One side of the adversarial game: its parameters, and how they are updated."""

import torch
from torch import Tensor, nn


class Player:
    """Parameters that are trained together by Adam.

    Parameters
    ----------
    parameters : what is trained, in single precision
    working : what losses are computed with: the same parameters, or copies of them in another precision
    learning_rate : a tensor, which may be filled with another rate later
    momentum : Adam's β₁
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
        """Take one step; the other players' gradients are neither wanted nor computed."""
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
        """Give Adam's memory of every parameter, of which there is none before the first update."""
        memory = self.optimizer.state_dict()["state"]
        return {f"{number}.{name}": value for number, of_one in memory.items() for name, value in of_one.items()}

    @torch.no_grad()
    def restore(self, tensors: dict[str, Tensor]) -> None:
        """Go back to a state; parameters must have gone back already. In place, as a captured graph must."""
        for number, parameter in enumerate(self.parameters):
            memory, prefix = self.optimizer.state[parameter], f"{number}."
            saved = {name.removeprefix(prefix): v for name, v in tensors.items() if name.startswith(prefix)}
            for name, value in saved.items():
                if name not in memory:
                    memory[name] = torch.empty_like(value, device=self._place(name, parameter))
                memory[name].copy_(value)
            for name in memory.keys() - saved.keys():
                memory[name].zero_()
        if self.copies:
            torch._foreach_copy_([*self.working], [*self.parameters])

    def _place(self, name: str, parameter: Tensor) -> torch.device:
        # As Adam has it: the number of steps is counted on the host where nothing on the device asks for it.
        counted_aside = name == "step" and parameter.device.type not in ("cpu", "cuda")
        return torch.device("cpu") if counted_aside else parameter.device
