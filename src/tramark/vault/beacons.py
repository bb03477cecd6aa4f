"""Have a public beacon draw answers: settle the questions, wait for the beacon's value, add it to the answers."""

from typing import TYPE_CHECKING

from tramark.errors import SettingError
from tramark.evidence.beacon import BeaconSource

if TYPE_CHECKING:
    from tramark.keys.keyring import Keyring
    from tramark.vault.store import Vault


def draw_answers(vault: "Vault", keyring: "Keyring", source: BeaconSource) -> "Keyring":
    """The keyring with answers that the beacon drew, after its questions, or new clients, were committed to.

    If the process ends before the value is out, the answers wait, and nothing can be marked with them: call it again.
    """
    vault.save_keyring(keyring, beacon=source.announce())
    if not any(not key for _, key in vault.keyring.beacons):
        raise SettingError("no new commitment was made that could name a beacon: no question was chosen, nobody joined")
    named = next(link.beacon for link in reversed(vault.commitments) if link.beacon)
    vault.reveal(source.value(named))
    return vault.keyring
