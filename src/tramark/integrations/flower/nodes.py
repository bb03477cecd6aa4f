"""Which client each node is, and which nodes claim to be somebody else."""

import json
from collections.abc import Callable, Mapping, Sequence
from logging import WARNING

from flwr.app import Message, MessageType, RecordDict
from flwr.common.logger import log
from flwr.serverapp import Grid
from flwr.superlink.grid.inmemory_grid import InMemoryGrid

from tramark.errors import SettingError
from tramark.integrations.flower.grid import plain
from tramark.vault.store import Vault

NODES = "flower-nodes"
"""The vault's note of which public key each client's name belongs to."""


NAME = "tramark-name"
"""Where a node that is not authenticated declares its name, in the ConfigRecord of its answer to a query."""


def identify_nodes(grid: Grid, nodes: Sequence[int]) -> dict[int, str]:
    """The nodes' durable names.

    In a simulation a node is its partition. On a SuperLink with SuperNode authentication it has the name under which
    its public key was registered; nodes that were registered without a name are left out as soon as any node has one.
    Without authentication a node is asked by a query message, which its ClientApp answers with a ConfigRecord that
    holds `tramark-name`; a name that anybody can claim proves nothing, so this warns.
    """
    known = {info.node_id: info for info in grid.get_nodes()}
    if isinstance(plain(grid), InMemoryGrid):
        # The engine registers its nodes in the order of their partitions.
        order = sorted(known, key=lambda node: known[node].registered_at)
        width = len(str(len(order) - 1))
        return {node: f"partition-{number:0{width}d}" for number, node in enumerate(order) if node in nodes}
    if any(info.name for info in known.values()):
        return registered_names(grid, nodes)
    log(
        WARNING,
        "SuperNode authentication is off: nodes say themselves who they are. A mark accuses a name, and here anybody "
        "could have taken it; see --enable-supernode-auth.",
    )
    return _ask_names(grid, nodes)


def registered_names(grid: Grid, nodes: Sequence[int]) -> dict[int, str]:
    """The names under which nodes' public keys were registered. Nodes without one are left out, and never asked.

    `TraMarkStrategy(identify=registered_names)` insists on it from the first round on.
    """
    known = {info.node_id: info.name for info in grid.get_nodes()}
    if nameless := {node for node in nodes if node in known and not known[node]}:
        log(
            WARNING,
            "no model goes to nodes that were registered without a name (%s here): register their keys with --name",
            len(nameless),
        )
    return {node: known[node] for node in nodes if known.get(node)}


def _ask_names(grid: Grid, nodes: Sequence[int]) -> dict[int, str]:
    queries = {node: Message(RecordDict(), node, MessageType.QUERY) for node in nodes}
    replies = list(grid.send_and_receive(list(queries.values()), timeout=120))
    asked = {query.metadata.message_id: node for node, query in queries.items()}
    names = {}
    # In the nodes' order, whatever the order in which they answered: the first to claim a name gets it.
    by_node = {asked[reply.metadata.reply_to_message_id]: reply for reply in replies if not reply.has_error()}
    for node in (node for node in nodes if node in by_node):
        for record in by_node[node].content.config_records.values():
            if name := record.get(NAME):
                names[node] = str(name)
    if missing := [node for node in nodes if node not in names]:
        raise SettingError(
            f"{len(missing)} nodes have no name to mark their models by: turn SuperNode authentication on, let the "
            f"ClientApp answer queries with a ConfigRecord that holds {NAME!r}, or pass identify=…"
        )
    return names


class Nodes:
    """Who is who, and who claims to be somebody else."""

    def __init__(self, identify: Callable[[Grid, Sequence[int]], Mapping[int, str]]) -> None:
        self._identify = identify
        self._names: dict[int, str] = {}
        self._keys: dict[str, str] = {}
        self._vault: Vault | None = None

    def begin(self, vault: Vault) -> None:
        """Take up what the vault knows of names and keys, and write down what was learnt before it was open."""
        self._vault = vault
        if NODES in vault.names:
            known: dict[str, str] = json.loads(vault.get(NODES))
            self._keys = known | {name: key for name, key in self._keys.items() if name not in known}
        self._write()

    def names(self, grid: Grid, nodes: Sequence[int]) -> dict[int, str]:
        """The names of the nodes that may be sent a model."""
        self._forget_claims(grid)
        if unknown := [node for node in nodes if node not in self._names]:
            # Where names belong to keys, nobody is asked, even if no node with a name is there.
            identify = registered_names if self._keys and self._identify is identify_nodes else self._identify
            self._admit(grid, identify(grid, unknown))
        return {node: self._names[node] for node in nodes if node in self._names}

    def _forget_claims(self, grid: Grid) -> None:
        """Forget names that nodes gave themselves, once it is seen that authentication is on."""
        registered = {info.node_id: info.name for info in grid.get_nodes()}
        if self._identify is identify_nodes and (self._keys or any(registered.values())):
            claims = [n for n, name in self._names.items() if n in registered and registered[n] != name]
            if not isinstance(plain(grid), InMemoryGrid):
                for node in claims:
                    del self._names[node]

    def _admit(self, grid: Grid, claims: Mapping[int, str]) -> None:
        keys = {info.node_id: info.public_key.hex() for info in grid.get_nodes()}
        durable = not isinstance(plain(grid), InMemoryGrid) and any(info.name for info in grid.get_nodes())
        for node, name in claims.items():
            holder = next((other for other, taken in self._names.items() if taken == name), None)
            gone = holder is not None and holder not in keys
            if holder is not None and not gone:
                log(WARNING, "node %s claims the name %r, which another node has: it gets no model", node, name)
            elif durable and self._keys.get(name, keys.get(node)) != keys.get(node):
                log(WARNING, "node %s claims the name %r with another public key: it gets no model", node, name)
            else:
                if gone and holder is not None:
                    del self._names[holder]
                self._names[node] = name
                if durable:
                    self._keys[name] = keys[node]
        self._write()

    def _write(self) -> None:
        if self._vault is None or not self._keys:
            return
        data = json.dumps(self._keys, sort_keys=True).encode()
        if NODES not in self._vault.names or self._vault.get(NODES) != data:
            self._vault.put(NODES, data)
