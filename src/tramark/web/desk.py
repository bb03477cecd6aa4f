"""The desk: the vault, opened once, and the suspects that lie on it.

The passphrase is used to open the vault and then forgotten: the open vault, in the memory of this process, has the key
that it needs. Uploads lie in a folder that only its owner can read, until the desk is closed.
"""

import json
import re
import secrets
import shutil
import tempfile
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

from tramark.errors import NoKey, SettingError, WrongKey
from tramark.keys.keyring import Keyring
from tramark.suspects.files import open_suspect
from tramark.suspects.weights import ModelName
from tramark.tracing.suspected import suspected_at
from tramark.vault.storage import now
from tramark.vault.store import Vault
from tramark.web.forms import Order
from tramark.web.traces import Trace

MODEL = "model"
"""The name under which a vault describes the federation's model."""

KEPT = 8
"""Suspects that lie on the desk; the oldest that is not being asked makes room for a new one."""


@dataclass(frozen=True)
class Openers:
    """What the desk needs of whoever starts it.

    Parameters
    ----------
    vault : opens the vault for reading, with a passphrase or, for None, with the key at hand; `NoKey` if there is none.
    prepare : gives that vault the images that its questions are made of, if it needs any.
    model : the function that makes a model of that name, given the keyring and the vault's description of the model.
    """

    vault: Callable[[str | None], Vault]
    prepare: Callable[[Vault], object]
    model: Callable[[str | None, Keyring, Mapping[str, Any]], ModelName | None]


class Desk:
    """The vault and the suspects that are traced with it."""

    def __init__(self, openers: Openers) -> None:
        self._openers = openers
        self._vault: Vault | None = None
        self._folder = tempfile.TemporaryDirectory(prefix="tramark-")
        self._mutex = threading.Lock()
        # A suspect's process ends with the thread that started it, so that thread must stay as long as the desk does.
        self._opener = ThreadPoolExecutor(1)
        self.traces: dict[str, Trace] = {}
        self.audited: tuple[str, list[str]] = ("", [])
        with suppress(NoKey):
            self.unlock(None)

    @property
    def locked(self) -> bool:
        """Whether the passphrase is still to be given."""
        return self._vault is None

    @property
    def vault(self) -> Vault:
        """The open vault."""
        if self._vault is None:
            raise NoKey("the vault is locked: give its passphrase")
        return self._vault

    @property
    def keyring(self) -> Keyring:
        """The vault's keyring."""
        return self.vault.keyring

    def unlock(self, passphrase: str | None) -> None:
        """Open the vault and audit it; `WrongKey` if that is not its passphrase."""
        with self._mutex:
            if self._vault is None:
                if passphrase == "":
                    raise WrongKey("give the vault's passphrase")
                vault = self._openers.vault(passphrase)
                self._openers.prepare(vault)
                self._vault = vault
        self.audit()

    def audit(self) -> None:
        """Check all files of the vault, and keep what was found."""
        self.audited = now(), self.vault.audit()

    def lay(self, order: Order, name: str = "", content: IO[bytes] | None = None) -> str:
        """Put a suspect on the desk, and give the name under which it lies there. Nothing is asked yet."""
        if (content is None) == (not order.url):
            raise SettingError("give either a file or an address")
        label, keyring = secrets.token_urlsafe(9), self.keyring
        target = order.url
        if order.url and not re.match(r"https?://", order.url):
            raise SettingError("an address begins with http:// or https://")
        if content is not None:
            place = Path(self._folder.name) / label
            place.mkdir()
            target = str(place / _safe(name))
            with open(target, "xb") as file:
                shutil.copyfileobj(content, file)
        remote = content is None
        described = json.loads(self.vault.get(MODEL)) if MODEL in self.vault.names else {}
        adapter = self._opener.submit(
            open_suspect,
            target,
            conventions=replace(order.conventions, prepare=keyring.source.prepare),
            model=None if remote else self._openers.model(order.model, keyring, described),
            served=order.model if remote else None,
            template=order.template,
            http=order.http,
        ).result()
        with self._mutex:
            self._make_room()
            self.traces[label] = Trace(suspected_at(target), adapter, order)
        if not remote and order.case is None:
            self.probe(label)
        return label

    def probe(self, label: str) -> None:
        """Find out how a suspect on the desk is fed and read."""
        self._opener.submit(self.traces[label].probe, self.vault).result()

    def close(self) -> None:
        """Stop what is being asked, forget the key, and delete what was uploaded."""
        for one in self.traces.values():
            one.stop()
        for one in self.traces.values():
            one.wait(5)
        self.traces.clear()
        self._opener.shutdown()
        if self._vault is not None:
            self._vault.close()
        self._folder.cleanup()

    def _make_room(self) -> None:
        idle = [label for label, one in self.traces.items() if one.state != "running"]
        for label in idle[: max(0, len(self.traces) - KEPT + 1)]:
            del self.traces[label]
            shutil.rmtree(Path(self._folder.name) / label, ignore_errors=True)


def _safe(name: str) -> str:
    """An uploaded file's name, which is recorded in the case, without anything that could lead elsewhere.

    >>> _safe("../../etc/model v2.onnx")
    'model v2.onnx'
    """
    last = re.split(r"[/\\]", name)[-1]
    return re.sub(r"[^\w .()+-]", "_", last).lstrip(".")[-120:] or "suspect"
