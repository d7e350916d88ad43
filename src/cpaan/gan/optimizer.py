"""One side of the adversarial game: its parameters, and how they are updated."""

import torch
from torch import Tensor, nn
from torch.optim.adam import adam

from cpaan.training.weights import part_of

SQUARES_KEPT, EPSILON = 0.999, 1e-8  # Adam's β₂ and ε


class Optimizer:
    """Adam for the networks of one side: their parameters in single precision, and the working copies that losses use.

    Working parameters are the same, or copies in another precision. The learning rate is a tensor, which may be filled
    with another rate later; momentum is β₁.

    By torch's function and not by its class: the first optimizer of a process loads torch's compiler, which takes
    longer than a small training, and nothing here is compiled.
    """

    def __init__(
        self, parameters: list[nn.Parameter], working: list[nn.Parameter], learning_rate: Tensor, momentum: float
    ) -> None:
        self.parameters, self.working = parameters, working
        self.copies = bool(parameters) and working[0] is not parameters[0]
        self.learning_rate, self.momentum = learning_rate, momentum
        self.fused = learning_rate.device.type in ("cpu", "cuda")
        self.memory: list[dict[str, Tensor]] = [{} for _ in parameters]
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
            self._step()
            return
        with torch.no_grad():
            torch._foreach_copy_(self.gradients, [each.grad for each in self.working if each.grad is not None])
            self._step()
            torch._foreach_copy_([*self.working], [*self.parameters])

    def state(self) -> dict[str, Tensor]:
        """Return Adam's memory of every parameter; there is none before the first update."""
        return {f"{number}.{name}": v for number, of_one in enumerate(self.memory) for name, v in of_one.items()}

    @torch.no_grad()
    def restore(self, tensors: dict[str, Tensor]) -> None:
        """Restore a state after the parameters; in place, as a captured graph requires."""
        for number, parameter in enumerate(self.parameters):
            memory, saved = self.memory[number], part_of(tensors, f"{number}.")
            for name, value in saved.items():
                if name not in memory:
                    memory[name] = torch.empty_like(value, device=self._place(name, parameter))
                memory[name].copy_(value)
            for name in memory.keys() - saved.keys():
                memory[name].zero_()
        if self.copies:
            torch._foreach_copy_([*self.working], [*self.parameters])

    @torch.no_grad()
    def _step(self) -> None:
        """Let Adam change the parameters by their gradients; one without a gradient stays as it is."""
        moved = [
            (each, of_one) for each, of_one in zip(self.parameters, self.memory, strict=True) if each.grad is not None
        ]
        for parameter, memory in moved:
            if not memory:
                memory["step"] = torch.zeros((), device=self._place("step", parameter))
                memory["exp_avg"], memory["exp_avg_sq"] = torch.zeros_like(parameter), torch.zeros_like(parameter)
        adam(
            [parameter for parameter, _ in moved],
            [parameter.grad for parameter, _ in moved if parameter.grad is not None],
            [memory["exp_avg"] for _, memory in moved],
            [memory["exp_avg_sq"] for _, memory in moved],
            [],
            [memory["step"] for _, memory in moved],
            fused=self.fused,
            capturable=self.learning_rate.device.type == "cuda",
            amsgrad=False,
            beta1=self.momentum,
            beta2=SQUARES_KEPT,
            lr=self.learning_rate,
            weight_decay=0.0,
            eps=EPSILON,
            maximize=False,
        )

    def _place(self, name: str, parameter: Tensor) -> torch.device:
        # As Adam does: steps are counted on the host where nothing on the device reads them.
        counted_aside = name == "step" and parameter.device.type not in ("cpu", "cuda")
        return torch.device("cpu") if counted_aside else parameter.device
