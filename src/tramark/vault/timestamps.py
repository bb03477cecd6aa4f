"""Time stamps of a vault's commitments: asked of an authority over HTTP, and kept with the vault."""

import base64
import json
from datetime import datetime
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import urllib3

from tramark.errors import SettingError, VaultError, one_line
from tramark.evidence.timestamp import answers, request_for

if TYPE_CHECKING:
    from tramark.vault.store import Vault

TIMESTAMPS = "timestamps"
_LARGEST = 2**20


def stamp(vault: "Vault", authority: str) -> datetime:
    """Have the newest commitment stamped by the authority at a URL, keep its answer, and say the time in it.

    Whether to trust the authority is for whoever checks the evidence to decide; here, its answer must only fit.
    """
    if urlsplit(authority).scheme not in ("http", "https"):
        raise SettingError(f"{authority}: the address of a time-stamping authority begins with http:// or https://")
    newest = vault.commitments[-1]
    request = request_for(newest)
    try:
        with urllib3.PoolManager(timeout=30, retries=False) as http:
            headers = {"Content-Type": "application/timestamp-query"}
            reply = http.request("POST", authority, body=request.as_bytes(), headers=headers, preload_content=False)
            token = reply.read(_LARGEST)
    except urllib3.exceptions.HTTPError as error:
        raise VaultError(f"the time-stamping authority did not answer: {one_line(error)}") from None
    if reply.status != 200:
        raise VaultError(f"the time-stamping authority answered with HTTP status {reply.status}")
    time = answers(token, request)
    kept = {**tokens(vault), newest.digest: token}
    plain = {digest: base64.b64encode(one).decode() for digest, one in kept.items()}
    entry = {"event": "timestamped", "commitment": newest.digest, "authority": urlsplit(authority).hostname or ""}
    vault.record([entry], {TIMESTAMPS: json.dumps(plain).encode()})
    return time


def tokens(vault: "Vault") -> dict[str, bytes]:
    """The answers of time-stamping authorities, by the digest of the commitment."""
    plain = json.loads(vault.get(TIMESTAMPS)) if TIMESTAMPS in vault.names else {}
    return {digest: base64.b64decode(token) for digest, token in plain.items()}
