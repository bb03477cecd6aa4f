"""What a server leaves in its vault after each round: enough to go on later, and what was issued to whom."""

from tramark.commitment import state_digest
from tramark.federation.checkpoint import dump, restore
from tramark.server import TraMark
from tramark.vault import Vault, issued

SERVER = "server"


def record_round(vault: Vault, server: TraMark) -> None:
    """Seal the server's state and log which model goes to whom. Call it after `collect`, before anything is sent."""
    vault.save_keyring(server.keyring)
    vault.record(
        [issued(server.round, client, state_digest(state)) for client, state in server.dispatch().items()],
        {SERVER: dump(server)},
    )


def go_on(vault: Vault, server: TraMark) -> None:
    """Bring a server to where `record_round` last left it."""
    if SERVER in vault.names:
        restore(vault.get(SERVER), server)
