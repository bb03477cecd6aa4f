"""Ways to feed a suspect that are likely: ranges of values, layouts, sizes, colours."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from tramark.errors import SuspectError
from tramark.suspects.conventions import Conventions

SIZES = (32, 224, 64, 28, 128, 96, 256, 299)
IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
GREY_IMAGENET = ((0.449,), (0.226,))
CIFAR = ((0.4914, 0.4822, 0.4465), (0.247, 0.2435, 0.2616))
MNIST = ((0.1307,), (0.3081,))

GEOMETRY = ("size", "resample", "crop", "colour", "layout", "flat")


def states_geometry(conventions: Conventions) -> bool:
    """Whether conventions state size, colour or layout."""
    plain = Conventions()
    return any(getattr(conventions, name) != getattr(plain, name) for name in GEOMETRY)


def other_values(conventions: Conventions, raw: Tensor) -> Iterator[Conventions]:
    """The same conventions with other ranges of values, likely ones first; none if they state them."""
    if conventions.normalised:
        return
    channels = {None: raw.shape[1], "grey": 1}.get(conventions.colour, 3)
    known = [GREY_IMAGENET, MNIST] if channels == 1 else [IMAGENET, CIFAR]
    ranges: list[dict[str, Any]] = [{"value_range": pair} for pair in ((0.0, 255.0), (0.0, 1.0), (-1.0, 1.0))]
    ranges += [{"mean": mean, "std": std} for mean, std in known]
    sample = replace(conventions, flat=False).pictures(raw[:2])
    same = None if conventions.prepare is None else conventions.prepare(sample)
    for stated in ranges:
        one = Conventions(**stated).inputs(sample)
        # What the federation does itself is no other way.
        if same is None or (one - same).abs().max() > 0.02 * same.abs().max():
            yield replace(conventions, **stated)


def other_orders(conventions: Conventions, raw: Tensor) -> Iterator[Conventions]:
    """The same conventions with channels in another order or place, for suspects that take either."""
    if states_geometry(conventions):
        return
    if raw.shape[1] == 3:
        yield replace(conventions, colour="bgr")
        yield replace(conventions, layout="NHWC")


def other_geometries(conventions: Conventions, raw: Tensor, declared: Sequence[Any]) -> Iterator[Conventions]:
    """The same conventions for other shapes, as the suspect declares them, or else likely ones first."""
    if states_geometry(conventions):
        return
    if (wanted := geometry_of(declared)) is not None:
        yield replace(conventions, **wanted)
        return
    colours: list[Any] = ["rgb", None] if raw.shape[1] == 1 else [None, "grey"]
    native: list[dict[str, Any]] = [{"layout": "NHWC"}, {"colour": colours[0] or "grey"}, {"flat": True}]
    native += [{"colour": colours[0] or "grey", "layout": "NHWC"}]
    for stated in native:
        yield replace(conventions, **stated)
    for edge in SIZES:
        if raw.shape[2:] != (edge, edge):
            for colour in colours:
                for layout in ("NCHW", "NHWC"):
                    yield replace(conventions, size=(edge, edge), colour=colour, layout=layout)


def geometry_of(declared: Sequence[Any]) -> dict[str, Any] | None:
    """Size, colour and layout of the inputs that a model declares; None if it does not say them all.

    >>> geometry_of([-1, 224, 224, 3])
    {'layout': 'NHWC', 'colour': 'rgb', 'size': (224, 224)}
    """
    sizes = [size if isinstance(size, int) and size > 0 else None for size in declared]
    if len(sizes) == 2:
        return {"flat": True}
    if len(sizes) != 4 or None in sizes[1:]:
        return None
    layout = "NCHW" if sizes[1] in (1, 3) else "NHWC"
    channels, edges = (sizes[1], sizes[2:]) if layout == "NCHW" else (sizes[3], sizes[1:3])
    if channels not in (1, 3):
        return None
    return {"layout": layout, "colour": "grey" if channels == 1 else "rgb", "size": tuple(edges)}


def fits(conventions: Conventions, raw: Tensor) -> bool:
    """Whether questions can be turned into inputs by these conventions at all."""
    try:
        conventions.inputs(raw[:1], torch.float32)
    except SuspectError:
        return False
    return True
