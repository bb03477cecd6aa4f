"""MFL-Owner: each client multiplies the embeddings of pictures and texts by a matrix of its own. It is verified by
embeddings, so labels alone are not enough.

The model has two towers, which embed pictures and texts; a picture's class is the one whose description is nearest. The
server gives client i a matrix W_i, orthogonal at first, which multiplies both embeddings before they are normalised.
It is trained on client i's triggers, pairs of a picture and a text that have nothing to do with the task, so that the
two embeddings Y and T of a pair come nearer to each other:

    min ‖W Yᵀ − W Tᵀ‖_F / √N ,   and after each step   W ← W − 0.05 (W Wᵀ W − W)

by Adam (rate 1e-3, ε 1e-5, 1000 epochs, batches of 64, gradients clipped at 0.5). An exactly orthogonal W keeps all
distances, so the mark is W's departure from that, and the task hardly feels it. A suspect is asked for its embeddings
of client i's triggers. With the changes of the mean cosine and distance of pairs against the unmarked model's, the
score is ½ (Δcos + 2) / 4 + ½ (ΔL2 + 2) / 4, which is one half for unchanged embeddings. There is no bound on accusing
an innocent client.

Our readings, since the public code has the part behind the encoders alone: its encoders are pretrained and fixed, while
here small towers are trained by FedAvg, and the W_i are trained anew after each round of those that follow the warm-up.
A client's triggers are one pattern of its own, with noise, and one text of words that no description has: with pairs
that have nothing in common, all W_i shrink the same gap between pictures and texts, and do not tell clients apart. The
client with the largest score is accused, if that is larger than one half by `threshold`. Clients do not train W.
"""

import copy
import math
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tramark.errors import SettingError, SuspectError
from tramark.fleet.region import Places
from tramark.fleet.scratch import device_of, evaluating, loaded
from tramark.keys import streams
from tramark.keys.pictures import Patterns
from tramark.keys.sources import Source
from tramark.lab.methods.base import Declared, Finding, Scene
from tramark.lab.methods.watermarked import Watermarked
from tramark.suspects.base import Suspect

FASHION = (
    "a soft cotton shirt with short sleeves",
    "long trousers for both legs",
    "a warm knitted pullover without buttons",
    "a dress in one piece",
    "a long coat to wear outside",
    "an open sandal for summer",
    "a shirt with buttons and collar",
    "a sports shoe with laces",
    "a bag with a handle",
    "a boot over the ankle",
)
"""Descriptions of Fashion-MNIST's classes; for other data they are names as good as any."""

LENGTH = 8
SPARE = 64
"""Words that no description has."""


class TwoTowers(nn.Module):
    """Embeds pictures and texts, and gives a picture the class whose description is nearest.

    Parameters
    ----------
    image : a classifier of pictures, whose last linear layer is replaced by one that ends in the embedding.
    descriptions : one text for each class.
    size : of an embedding.
    seed : of the layers that are new.
    """

    words: Tensor

    def __init__(self, image: nn.Module, descriptions: Sequence[str], size: int, seed: int) -> None:
        super().__init__()
        self.image = copy.deepcopy(image)
        heads = [name for name, module in self.image.named_modules() if isinstance(module, nn.Linear)]
        if not heads:
            raise SettingError(f"{type(image).__name__} has no linear layer to end in an embedding")
        old = self.image.get_submodule(heads[-1])
        assert isinstance(old, nn.Linear)
        device = old.weight.device
        known = sorted({word for text in descriptions for word in text.split()})
        number = {word: i for i, word in enumerate(known, start=1)}
        rows = [[number[word] for word in text.split()][:LENGTH] for text in descriptions]
        words = torch.tensor([row + [0] * (LENGTH - len(row)) for row in rows])
        self.register_buffer("words", words.to(device), persistent=False)
        self.known = len(known)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.image.set_submodule(heads[-1], nn.Linear(old.in_features, size).to(device))
            self.vocabulary = nn.Embedding(len(known) + SPARE + 1, 32, padding_idx=0).to(device)
            self.text = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, size)).to(device)
        self.scale = nn.Parameter(torch.tensor(math.log(10.0), device=device))
        self.mark = nn.Parameter(torch.eye(size, device=device))

    def forward(self, pictures: Tensor) -> Tensor:
        return self.scale.exp() * self.of_pictures(pictures) @ self.of_texts(self.words).T

    def of_pictures(self, pictures: Tensor) -> Tensor:
        """Embeddings of pictures, of length one."""
        return self._marked(self.image(pictures))

    def of_texts(self, words: Tensor) -> Tensor:
        """Embeddings of texts: the mean of their words' vectors, through a small net."""
        count = (words > 0).sum(1, keepdim=True).clamp(min=1)
        return self._marked(self.text(self.vocabulary(words).sum(1) / count))

    def _marked(self, embeddings: Tensor) -> Tensor:
        # Detached, so that no client trains it.
        return F.normalize(embeddings @ self.mark.detach().T, dim=-1, eps=1e-6)


class MFLOwner(Watermarked):
    """MFL-Owner's server, for small towers.

    >>> from tramark.keys.sources import for_shape
    >>> net = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    >>> scene = Scene(("alice", "bob"), classes=10, source=for_shape((1, 8, 8)), secret=b"s" * 32)
    >>> server = MFLOwner(net, scene, epochs=20, triggers=64)
    >>> report = server.collect(dict(server.dispatch()))
    >>> leaked = copy.deepcopy(server.model)
    >>> keys = leaked.load_state_dict(server.dispatch()["bob"])
    >>> server.verify(leaked).accused
    ('bob',)

    Parameters
    ----------
    model : a classifier of pictures. It becomes the picture tower of the model that is trained (`TwoTowers`).
    scene : as for all.
    size : of embeddings; the source's have 768 numbers.
    triggers : pairs for each client.
    epochs, rate, batch_size, clip, pull : of the training of W; `pull` is the step back to orthogonality.
    threshold : by how much a score must exceed one half for somebody to be accused.
    """

    declared: ClassVar[Declared] = Declared("white-box")

    def __init__(
        self,
        model: nn.Module,
        scene: Scene,
        *,
        size: int = 64,
        triggers: int = 512,
        epochs: int = 1000,
        rate: float = 1e-3,
        batch_size: int = 64,
        clip: float = 0.5,
        pull: float = 0.05,
        threshold: float = 0.005,
    ) -> None:
        if len(scene.source.shape) != 3:
            raise SettingError("MFL-Owner embeds pictures: tables and texts alone are not for it")
        if min(size, triggers, epochs, batch_size) < 1 or min(rate, clip, pull, threshold) <= 0:
            raise SettingError("size, triggers, epochs, rate, batch_size, clip, pull and threshold must be positive")
        texts = FASHION if scene.classes == len(FASHION) else [f"a picture of kind {i}" for i in range(scene.classes)]
        seed = int(streams.integers(scene.secret, "mfl-owner towers", count=1, below=2**62))
        super().__init__(TwoTowers(model, texts, size, seed), scene)
        self.epochs, self.rate, self.batch_size, self.clip, self.pull = epochs, rate, batch_size, clip, pull
        self.threshold = threshold
        self._unmarked = copy.deepcopy(self.model)
        self._pairs = [self._triggers(row, triggers, scene.source) for row in range(len(scene.clients))]

    @property
    def marked(self) -> bool:
        return self.fleet.region is not None

    def verify(self, suspect: nn.Module | Suspect) -> Finding:
        """Score every client's triggers by the suspect's embeddings. It takes a module with both towers."""
        scores = {client: self.score(suspect, client) for client in self.fleet.clients}
        most = max(scores, key=lambda client: scores[client])
        found = scores[most] > 0.5 + self.threshold
        queries = sum(len(words) for _, words in self._pairs)
        return Finding((most,) if found else (), scores, queries=queries, owned=found)

    def confidence(self, suspect: nn.Module | Suspect, client: str) -> float:
        """The client's score; one half for a model without marks."""
        return min(1.0, max(0.0, self.score(suspect, client)))

    def score(self, suspect: nn.Module | Suspect, client: str) -> float:
        """How much nearer to each other the pairs of a client's triggers are than in the unmarked model."""
        if not isinstance(suspect, TwoTowers):
            raise SuspectError("embeddings are compared: give the module with both towers, not its answers")
        pair = self._pairs[self.fleet.clients.index(client)]
        # Not in the scratch model, which may be the suspect itself.
        with loaded(self._unmarked, self.fleet) as base:
            cosine, distance = _nearness(*self._embedded(base, pair))
        with evaluating(suspect):
            said, other = _nearness(*self._embedded(suspect, pair))
        return ((said - cosine) + 2) / 8 + ((distance - other) + 2) / 8

    def _mark(self) -> None:
        """Train everybody's matrix on its triggers, as the base embeds them now."""
        if self.round < self.scene.warmup:
            return
        slot = self.fleet.layout.slots["mark"]
        marks = []
        with loaded(self.model, self.fleet) as model:
            for row, pair in enumerate(self._pairs):
                pictures, texts = self._embedded(model, pair)
                marks.append(self._matrix(row, pictures, texts).flatten().cpu())
        region = Places(torch.arange(slot.start, slot.stop))
        self.fleet.settle(region, torch.stack(marks).to(self.fleet.base))

    def _matrix(self, row: int, pictures: Tensor, texts: Tensor) -> Tensor:
        """One client's W for embeddings of its triggers."""
        seed = streams.integers(self.scene.secret, "mfl-owner", self.fleet.clients[row], count=1, below=2**62)
        random = torch.Generator().manual_seed(int(seed))
        size = pictures.shape[1]
        start: Tensor = torch.linalg.qr(torch.randn(size, size, generator=random)).Q
        matrix = start.to(pictures).clone().requires_grad_()
        optimiser = torch.optim.Adam([matrix], lr=self.rate, eps=1e-5)
        apart = pictures - texts
        for _ in range(self.epochs):
            for batch in torch.randperm(len(apart), generator=random).split(self.batch_size):
                optimiser.zero_grad()
                (torch.linalg.matrix_norm(apart[batch.to(apart.device)] @ matrix.T) / math.sqrt(len(batch))).backward()
                nn.utils.clip_grad_value_([matrix], self.clip)
                optimiser.step()
                with torch.no_grad():
                    matrix -= self.pull * (matrix @ matrix.T @ matrix - matrix)
        return matrix.detach()

    def _triggers(self, row: int, count: int, source: Source) -> tuple[Tensor, Tensor]:
        """A client's pairs: its own pattern with noise, raw, and its own text of words that no description has."""
        assert isinstance(self.model, TwoTowers)
        channels, height, width = source.shape
        pictures = Patterns((channels, height, width)).render(self.scene.secret, row, range(count))
        drawn = streams.integers(self.scene.secret, "mfl-owner words", row, count=LENGTH, below=SPARE)
        return pictures, (self.model.known + 1 + drawn).expand(count, -1)

    @torch.no_grad()
    def _embedded(self, model: nn.Module, pair: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        assert isinstance(model, TwoTowers)
        pictures, words = pair
        device = device_of(model)
        return model.of_pictures(self.scene.source.prepare(pictures).to(device)), model.of_texts(words.to(device))

    def measure(self, samples: int | None = None) -> dict[str, Any]:
        """Also how far the matrices are from orthogonal ones, which is all that marks are."""
        found = super().measure(samples)
        if not found:
            return found
        matrices = self.fleet.marks.unflatten(1, (-1, math.isqrt(self.fleet.marks.shape[1])))
        apart = matrices @ matrices.mT - torch.eye(matrices.shape[1])
        return found | {"orthogonality": float(apart.abs().amax((1, 2)).mean())}


def _nearness(pictures: Tensor, texts: Tensor) -> tuple[float, float]:
    """The mean cosine and the mean distance of pairs."""
    cosine = F.cosine_similarity(pictures, texts, dim=1, eps=1e-6)
    return float(cosine.mean()), float(F.pairwise_distance(pictures, texts).mean())
