"""Make a new vault: its files, its signing key, its first commitment and the first entry of its log."""

import os
import secrets
import shutil
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tramark.errors import VaultError
from tramark.evidence.commitment import canonical
from tramark.vault import commit
from tramark.vault.files import sync_directory
from tramark.vault.lock import KeySource
from tramark.vault.log import Entry
from tramark.vault.storage import KEYRING, SIGNING, Storage, now

if TYPE_CHECKING:
    from tramark.keys.keyring import Keyring


def new_vault(path: Path, keyring: "Keyring", source: KeySource, *, simulated: bool) -> Storage:
    """A new vault at `path`, open for writing. It is built beside `path` and then moved there whole."""
    building = building_place(path)
    with ExitStack() as undo:
        undo.callback(shutil.rmtree, building, ignore_errors=True)
        storage = Storage.create(building, source)
        undo.callback(storage.close)
        signing_key = Ed25519PrivateKey.generate()
        first, leaves = commit.commit(keyring, signing_key, vault=storage.id, time=now(), simulated=simulated)
        created: Entry = {"event": "created", "vault": storage.id, "clients": keyring.clients}
        created |= {"commitment": first.digest} | ({"simulated": True} if simulated else {})
        storage.commit(
            [created],
            {
                KEYRING: canonical(keyring.to_dict()),
                SIGNING: signing_key.private_bytes_raw(),
            },
            publish=[(first, leaves)],
        )
        move_there(storage, path)
        undo.pop_all()
    return storage


def building_place(path: Path) -> Path:
    """A folder beside `path` in which a vault is built, so that `path` never has half of one."""
    if path.is_symlink() or (path.exists() and (not path.is_dir() or any(path.iterdir()))):
        raise VaultError(f"{path} exists already: a vault is made in a new directory")
    path.parent.mkdir(parents=True, exist_ok=True)
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")


def move_there(storage: Storage, path: Path) -> None:
    """Move a vault that is complete to its path."""
    os.rename(storage.path, path)
    storage.path = path
    sync_directory(path.parent)
