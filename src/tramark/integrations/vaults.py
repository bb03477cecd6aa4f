"""The vault of another framework's federation: opened, or made for the clients of the first round."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from tramark.errors import NoKey, SettingError
from tramark.keys.keyring import Keyring
from tramark.vault.lock import default_key_file, find_key, make_key_file
from tramark.vault.store import Vault


def open_or_make(
    path: Path, clients: Sequence[str], options: Mapping[str, Any], *, warn: Callable[[str], None]
) -> Vault:
    """The vault at a path, or a new one with a keyring for these clients; `options` are those of `Keyring.generate`.

    A new vault without a passphrase gets a key file beside it. `warn` is told where.
    """
    if path.exists():
        return Vault.open(path)
    keyring = Keyring.generate(clients=clients, **options)
    try:
        key = find_key(path)
    except NoKey:
        path.parent.mkdir(parents=True, exist_ok=True)
        make_key_file(default_key_file(path))
        key = find_key(path)
        warn(f"no passphrase given: the vault's key goes to {default_key_file(path)}")
    return Vault.create(path, keyring, passphrase=key.passphrase, key_file=key.key_file)


def outputs_of(model: nn.Module) -> int:
    """The number of labels of a model: the outputs of its last linear layer."""
    linear = [module for module in model.modules() if isinstance(module, nn.Linear)]
    if not linear:
        raise SettingError(f"{type(model).__name__} has no linear layer: say how many labels it has by classes=…")
    return linear[-1].out_features
