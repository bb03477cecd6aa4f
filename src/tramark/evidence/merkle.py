"""Merkle trees as in RFC 6962, section 2.1: leaves and nodes are hashed differently, and no leaf is ever duplicated."""

import hashlib
from collections.abc import Sequence
from struct import iter_unpack

import numpy as np
from numpy.typing import NDArray

from tramark.errors import BadProof


class MerkleTree:
    """The tree over leaves that are hashed already.

    >>> leaves = [leaf_hash(bytes([i])) for i in range(5)]
    >>> tree = MerkleTree(leaves)
    >>> climb(leaves[3], 3, 5, tree.path(3)) == tree.root
    True
    """

    def __init__(self, leaves: Sequence[bytes]) -> None:
        if not leaves:
            raise ValueError("a tree needs at least one leaf")
        self.levels = [list(leaves)]
        while len(below := self.levels[-1]) > 1:
            pairs = zip(below[::2], below[1::2], strict=False)
            level = [hashlib.sha256(b"\1" + left + right).digest() for left, right in pairs]
            # An odd one moves up as it is: paired with itself, it would let two lists share a root.
            self.levels.append(level + below[len(below) & ~1 :])

    @property
    def root(self) -> bytes:
        """The hash that stands for all leaves."""
        return self.levels[-1][0]

    def path(self, index: int) -> list[bytes]:
        """The hashes that lead from a leaf to the root, lowest first."""
        path = []
        for level in self.levels[:-1]:
            if index ^ 1 < len(level):
                path.append(level[index ^ 1])
            index >>= 1
        return path


def root_of(leaves: bytes) -> bytes:
    """The root of the tree over leaves that are hashed already, given one after the other."""
    return bytes(roots(np.frombuffer(leaves, np.uint8).reshape(1, -1, 32))[0])


def roots(leaves: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The roots of many trees of one size: trees × leaves × 32 bytes to trees × 32."""
    level = leaves
    while (size := level.shape[1]) > 1:
        pairs = level[:, : size & ~1].reshape(len(level), -1, 64)
        above = hashes(np.concatenate([np.ones_like(pairs[:, :, :1]), pairs], axis=2))
        level = np.concatenate([above, level[:, size & ~1 :]], axis=1)
    return level[:, 0]


def hashes(rows: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The SHA-256 hash of each row: … × bytes to … × 32."""
    sha256 = hashlib.sha256
    found = b"".join([sha256(row).digest() for (row,) in iter_unpack(f"{rows.shape[-1]}s", rows.tobytes())])
    return np.frombuffer(found, np.uint8).reshape(*rows.shape[:-1], 32)


def leaf_hash(data: bytes) -> bytes:
    """The hash of a leaf's content."""
    return hashlib.sha256(b"\0" + data).digest()


def node_hash(left: bytes, right: bytes) -> bytes:
    """The hash of two subtrees."""
    return hashlib.sha256(b"\1" + left + right).digest()


def climb(leaf: bytes, index: int, size: int, path: Sequence[bytes]) -> bytes:
    """The root that `path` leads to from a leaf, the one with number `index` in a tree of `size` leaves."""
    if not 0 <= index < size:
        raise BadProof(f"there is no leaf {index} in a tree of {size}")
    here, last, node = index, size - 1, leaf
    steps = iter(path)
    while last:
        if here ^ 1 <= last:
            sibling = next(steps, b"")
            if len(sibling) != 32:
                raise BadProof("a path has a hash that is missing or of the wrong length")
            node = node_hash(sibling, node) if here & 1 else node_hash(node, sibling)
        here, last = here >> 1, last >> 1
    if next(steps, None) is not None:
        raise BadProof("a path is longer than its tree is high")
    return node
