"""What the published methods have in common: FedAvg for a scene, with marks that can be verified."""

from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from tramark.fleet.scratch import loaded
from tramark.keys.sources import Source
from tramark.lab.methods.base import Declared, Finding, Scene
from tramark.lab.methods.fedavg import FedAvg
from tramark.suspects.base import Suspect
from tramark.suspects.module import ModuleSuspect


class Watermarked(FedAvg):
    """The base of methods whose models can be verified: `verify` and `confidence` are theirs.

    Parameters
    ----------
    model : the initial model, which is copied. Its device is used for making marks.
    scene : the clients, the task and the secret that everything is drawn from. Its options are the parameters of the
        method's own constructor.
    """

    declared: ClassVar[Declared]

    def __init__(self, model: nn.Module, scene: Scene) -> None:
        super().__init__(model, scene.clients, checkpoint=scene.checkpoint)
        self.scene = scene

    @classmethod
    def make(cls, model: nn.Module, scene: Scene) -> Self:
        return cls(model, scene, **scene.options)

    def __repr__(self) -> str:
        options = (f"{name}={value!r}" for name, value in self.scene.options.items())
        return f"{type(self).__name__}({', '.join([f'{len(self.fleet.clients)} clients', *options])})"

    @property
    def marked(self) -> bool:
        return True

    def verify(self, suspect: nn.Module | Suspect) -> Finding:
        raise NotImplementedError

    def confidence(self, suspect: nn.Module | Suspect, client: str) -> float:
        raise NotImplementedError

    def measure(self, samples: int | None = None) -> dict[str, Any]:
        """Verify each client's model by itself.

        VR is the share of models traced to their owner and nobody else, None if the method names nobody. `owned` is
        the share that the method claims for the federation.
        """
        if not self.marked:
            return {}
        per_client: dict[str, dict[str, float]] = {}
        flat = torch.empty_like(self.fleet.base)
        for client in self.fleet.clients:
            with loaded(self.model, self.fleet, self.fleet.weights(client, out=flat)) as model:
                finding = self.verify(model)
                per_client[client] = {
                    "confidence": self.confidence(model, client),
                    "owned": float(finding.owned),
                    "traced": float(finding.accused == (client,)),
                }
        mean = {
            name: sum(values[name] for values in per_client.values()) / len(per_client)
            for name in ("confidence", "owned", "traced")
        }
        traced = mean.pop("traced")
        return mean | {"vr": traced if self.declared.names_clients else None, "per_client": per_client}

    def _ask(self, suspect: nn.Module | Suspect, raw: Tensor) -> Tensor:
        return answers(suspect, raw, self.scene.source)


def answers(suspect: nn.Module | Suspect, raw: Tensor, source: Source) -> Tensor:
    """The labels that a suspect, or a module that is fed as the source says, gives to raw inputs."""
    if isinstance(suspect, nn.Module):
        suspect = ModuleSuspect(suspect, source.prepare)
    return suspect.ask(raw).labels.cpu()
