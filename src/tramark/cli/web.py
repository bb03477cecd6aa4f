"""`tramark web`: the auditor's desk, a page in the browser on which suspects are traced."""

from typing import TYPE_CHECKING, Annotated

import typer

from tramark.cli.common import DataDir, KeyFile, VaultPath, console, keyring_of, vault_at
from tramark.errors import SettingError

if TYPE_CHECKING:
    from tramark.vault.store import Vault


def web(
    vault: VaultPath,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen at; 0 for any that is free.")] = 0,
    largest_upload: Annotated[int, typer.Option(min=1, help="Largest file to take, in MiB.")] = 1024,
    browser: Annotated[bool, typer.Option(help="Open the page in the browser.")] = True,
    key_file: KeyFile = None,
    data_dir: DataDir = None,
) -> None:
    """Trace suspects on a page in the browser, which only this machine can reach.

    If the vault has a passphrase that is not in TRAMARK_PASSPHRASE, the page asks for it once.
    """
    try:
        from tramark.web.serve import serve
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("tramark"):
            raise
        raise SettingError(f"the page needs {error.name}: pip install 'tramark[web]'") from None
    from tramark.cli.zoo import model_factory
    from tramark.vault.lock import find_key, read_header
    from tramark.vault.store import Vault
    from tramark.web.desk import Openers

    place = vault_at(vault)
    if read_header(place)["lock"]["kind"] == "key file":
        # No page can ask for it.
        find_key(place, key_file=key_file)

    def opened(passphrase: str | None) -> "Vault":
        key = find_key(place, passphrase=passphrase, key_file=None if passphrase is not None else key_file)
        return Vault.open(place, passphrase=key.passphrase, key_file=key.key_file, readonly=True)

    def ready(address: str) -> None:
        console.print(f"the desk is open at {address}\nCtrl-C closes it", highlight=False, soft_wrap=True)
        if browser:
            typer.launch(address)

    openers = Openers(vault=opened, prepare=lambda found: keyring_of(found, data_dir), model=model_factory)
    serve(openers, port=port, largest=largest_upload << 20, ready=ready)
