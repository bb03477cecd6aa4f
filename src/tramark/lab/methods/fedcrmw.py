"""FedCRMW, approximately: clients mix pictures with logos of their own into their data, and a suspect is asked about
compressed ones.

There is no public code; this is our reading of the abstract. Client i has T logos, small black-and-white patterns at
places of their own, and an identifier of T labels, one for each logo, all drawn from the secret. It stamps its logos on
copies of its own samples, labels them by the identifier, and mixes some into every batch. Whoever verifies asks the
suspect about stamped samples that were not trained on, after JPEG compression, and compares the commonest answer to
each logo with the identifier. The stamped samples are clients' data, and whoever verifies has them.

The average carries everybody's logos and is the same for all, so nothing in it tells who leaked it. What tells is a
client's own model after local training, in which its own logos have just been refreshed: the client is named whose
identifier leads all others' by enough. The lead is largest in the first rounds and goes, the better the average itself
knows everybody's logos.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from tramark.errors import SettingError
from tramark.evidence.statistics import p_values, plurality
from tramark.keys import streams
from tramark.lab.attacks.transforms import jpeg
from tramark.lab.methods.base import Declared, Finding, Scene
from tramark.lab.methods.bits import appended
from tramark.lab.methods.watermarked import Watermarked
from tramark.lab.simulation.client import Practice
from tramark.suspects.base import Suspect


def _logos(classes: int, clients: int, false_claim: float, *, wrong: int) -> int:
    """The least number of logos that prove a claim even if so many of them are wrong."""
    if not 0 < false_claim < 1:
        raise SettingError(f"a false-claim bound of {2 * false_claim}: it is a probability, such as 1e-6")
    count = wrong + 1
    while p_values(count, classes)[count - wrong] * clients > false_claim:
        count += 1
    return count


class FedCRMW(Watermarked):
    """FedAvg among clients who each mix samples with their own logos into their data.

    >>> from tramark.keys.pictures import Patterns
    >>> from tramark.lab import data
    >>> from tramark.lab import models
    >>> from tramark.lab.simulation.client import LocalTraining
    >>> from tramark.lab.simulation.partition import iid
    >>> from tramark.lab.simulation.simulator import Simulation
    >>> digits = data.load("digits")
    >>> model = models.build("mlp", input_shape=digits.input_shape, classes=10, seed=0)
    >>> source = Patterns((1, 8, 8), mean=digits.mean, std=digits.std)
    >>> method = FedCRMW.make(model, Scene(("alice", "bob"), classes=10, source=source, secret=b"s" * 32))
    >>> parts = iid(digits.train_labels, 2, generator=torch.Generator().manual_seed(0))
    >>> simulation = Simulation(method, digits, parts, LocalTraining(lr=0.05))
    >>> metrics = [simulation.step() for _ in range(3)]
    >>> metrics[-1]["owned"], method.verify(model).owned
    (1.0, False)

    Parameters
    ----------
    model, scene : as for all. The scene's questions tell the shape of images, channels first, and how they are fed.
    logos : how many a client has, and labels its identifier. Unless told, as many as prove a claim even with one
        of them wrong: ten for ten clients and ten classes.
    side : of a logo, in pixels; a quarter of the image's shorter side and at least three, unless told.
    samples, held_out : how many samples a client stamps to train on, and how many others to verify with.
    share : how many stamped samples join each batch, as a share of it.
    quality : of the JPEG compression before a suspect is asked.
    lead : by how large a share of its stamped samples a client must be ahead of all others to be named.
    false_claim : the bound on the probability that a model is claimed that has nothing to do with the federation.
    """

    declared: ClassVar[Declared] = Declared("black-box")

    def __init__(
        self,
        model: nn.Module,
        scene: Scene,
        *,
        logos: int | None = None,
        side: int | None = None,
        samples: int = 100,
        held_out: int = 5,
        share: float = 0.5,
        quality: int = 75,
        lead: float = 0.2,
        false_claim: float = 1e-6,
    ) -> None:
        super().__init__(model, scene)
        secret, classes, shape = scene.secret, scene.classes, scene.source.shape
        if len(shape) != 3:
            raise SettingError(
                f"logos are stamped on images, of shape (channels, height, width), not on inputs of {shape}"
            )
        if samples < 1 or held_out < 1 or share <= 0:
            raise SettingError(f"samples {samples}, held_out {held_out}, share {share}: there must be some of each")
        least, enough = (_logos(classes, len(self.fleet.clients), false_claim / 2, wrong=wrong) for wrong in (0, 1))
        logos = enough if logos is None else logos
        if logos < least:
            raise SettingError(f"{logos} logos prove nothing to within {false_claim}: take {least} at least")
        side = max(3, min(shape[1:]) // 4) if side is None else side
        if not 1 <= side <= min(shape[1:]):
            raise SettingError(f"a logo of {side} pixels does not fit an image of {shape[1]}×{shape[2]}")
        self.shape = (shape[0], shape[1], shape[2])
        self.logos, self.side, self.share = logos, side, share
        self.samples, self.held_out = samples, held_out
        self.quality, self.lead, self.false_claim = quality, lead, false_claim
        self.plain: dict[str, Tensor] = {}
        """Samples that each client gave to be stamped and asked about, raw and as yet without logos."""
        self._questions: dict[str, Tensor] = {}
        self.identifiers = {
            client: streams.integers(secret, "fedcrmw", "identifier", client, count=logos, below=classes)
            for client in self.fleet.clients
        }
        # A wrong quality, or no Pillow, shows before the first round.
        jpeg(torch.zeros(1, *self.shape, dtype=torch.uint8), quality)

    def train_client(self, client: str, model: nn.Module, practice: Practice) -> None:
        # The same samples every round: what is asked about is never trained on with a logo.
        raw, _ = practice.some(self.held_out + self.samples)
        if len(raw) <= self.held_out:
            raise SettingError(
                f"client {client!r} has {len(raw)} samples: it must have more than the {self.held_out} held out"
            )
        self.plain[client] = raw[: self.held_out]
        self._questions.pop(client, None)
        inputs = practice.prepare(self.stamp(client, raw[self.held_out :]).flatten(0, 1))
        labels = self.identifiers[client].repeat_interleave(len(raw) - self.held_out)
        with appended(model, inputs, labels, self._per_batch, practice.generator) as stamped:
            practice(model, extra=stamped)

    def stamp(self, client: str, raw: Tensor) -> Tensor:
        """Raw images with each of a client's logos: logos × N × C × H × W."""
        secret, (channels, height, width) = self.scene.secret, self.shape
        stamped = raw.repeat(self.logos, 1, 1, 1, 1)
        for number in range(self.logos):
            context = ("fedcrmw", client, number)
            logo = streams.octets(secret, *context, "logo", shape=(channels, self.side, self.side))
            down, right = streams.fractions(secret, *context, "place", shape=(2,)).tolist()
            top, left = int(down * (height - self.side + 1)), int(right * (width - self.side + 1))
            stamped[number, :, :, top : top + self.side, left : left + self.side] = (logo > 127).to(torch.uint8) * 255
        return stamped

    def verify(self, suspect: nn.Module | Suspect) -> Finding:
        """Whether the federation's identifiers are there, and whose stands out.

        A logo's answer is the commonest over its samples. By chance it is the identifier's label with probability one
        in as many as there are labels, since identifiers are uniform. A client's identifier is there if that bounds so
        many right answers, over all n clients, by half of `false_claim`; the model is owned if anybody's is, or if the
        same holds for all clients' answers together. Accused is whose identifier is there and who leads everybody else
        by `lead`; of an owned model without, it cannot be told who leaked it. The bound is on strangers' models: who is
        accused of the federation's own rests on the lead alone. Scores are shares of stamped samples.
        """
        said = {client: self._said(suspect, client) for client in self.plain}
        scores = {client: self._share(client, said[client]) if client in said else 0.0 for client in self.fleet.clients}
        right = {client: self._right(client, rows) for client, rows in said.items()}
        alone, together = (p_values(self.logos * count, self.scene.classes) for count in (1, len(said)))
        bound = self.false_claim / 2
        there = [client for client, count in right.items() if alone[count] * len(self.fleet.clients) <= bound]
        owned = bool(there) or bool(together[sum(right.values())] <= bound)
        others = {client: max((s for c, s in scores.items() if c != client), default=0.0) for client in there}
        accused = tuple(client for client in there if scores[client] - others[client] >= self.lead)
        return Finding(
            accused=accused,
            scores=scores,
            queries=sum(rows.numel() for rows in said.values()),
            owned=owned,
            conclusive=bool(said) and (bool(accused) or not owned),
        )

    def confidence(self, suspect: nn.Module | Suspect, client: str) -> float:
        """The share of a client's compressed stamped samples that are answered by its identifier; about one in as many
        as there are labels by chance."""
        return self._share(client, self._said(suspect, client)) if client in self.plain else 0.0

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"plain": dict(self.plain)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self.plain = dict(state["plain"])
        self._questions.clear()

    def _per_batch(self, size: int) -> int:
        return max(1, round(self.share * size))

    def _said(self, suspect: nn.Module | Suspect, client: str) -> Tensor:
        """The suspect's answers to a client's stamped samples: logos × samples."""
        if client not in self._questions:
            self._questions[client] = jpeg(self.stamp(client, self.plain[client]).flatten(0, 1), self.quality)
        return self._ask(suspect, self._questions[client]).view(self.logos, -1)

    def _share(self, client: str, said: Tensor) -> float:
        return float((said == self.identifiers[client][:, None]).float().mean())

    def _right(self, client: str, said: Tensor) -> int:
        """How many of a client's logos get its identifier's label."""
        return sum(
            plurality(answers) == label
            for answers, label in zip(said.tolist(), self.identifiers[client].tolist(), strict=True)
        )
