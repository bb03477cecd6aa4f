"""The auditor's desk: a vault that is open, and how its suspects are opened."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tramark.cli.common import existing_file, keyring_of, open_vault, read_json

if TYPE_CHECKING:
    from tramark.keys.keyring import Keyring
    from tramark.suspects.base import Adapter
    from tramark.suspects.conventions import Conventions
    from tramark.suspects.http import HttpOptions
    from tramark.suspects.json_api import JsonTemplate
    from tramark.suspects.sandbox import Limits
    from tramark.suspects.weights import ModelName
    from tramark.vault.store import Vault

ModelOption = Annotated[
    str | None,
    typer.Option(
        "--model",
        help="Architecture of a file that holds weights only: a name, or package.module:factory. For a URL: the "
        "model's name at the server.",
    ),
]
ConventionsOption = Annotated[
    Path | None,
    existing_file(
        help="JSON file that says how the suspect is fed and its labels are read (docs/reference/suspects.md)."
    ),
]
TemplateOption = Annotated[
    Path | None, existing_file(help="JSON file that says how to ask a JSON API of any other kind (URLs only).")
]
RateOption = Annotated[float | None, typer.Option(help="Largest number of queries per second (URLs only).")]
TokenOption = Annotated[
    str | None, typer.Option(help="Name of the environment variable that holds the bearer token (URLs only).")
]
HeaderOption = Annotated[
    list[str] | None,
    typer.Option(
        help="NAME=ENVVAR: send this header with the value of that environment variable, such as "
        "X-API-Key=MY_KEY. Repeat the option for each (URLs only)."
    ),
]
MemoryOption = Annotated[
    float | None, typer.Option(min=0.1, help="GiB of memory that the process of a file may use beyond torch's own.")
]
SecondsOption = Annotated[
    float | None, typer.Option(min=1, help="Longest time, in seconds, in which a file is loaded or answers a batch.")
]


@dataclass(frozen=True)
class Asking:
    """How suspects are asked, as the command line says it."""

    model: str | None = None
    conventions: "Conventions | None" = None
    template: "JsonTemplate | None" = None
    http: "HttpOptions | None" = None
    limits: "Limits | None" = None


def asking(
    *,
    model: str | None,
    conventions: Path | None,
    template: Path | None,
    rate: float | None = None,
    token_env: str | None = None,
    budget: int | None = None,
    header: list[str] | None = None,
    memory: float | None = None,
    seconds: float | None = None,
) -> Asking:
    """How suspects are asked, from the options of a command."""
    from tramark.suspects.http import HttpOptions, from_environment
    from tramark.suspects.sandbox import Limits
    from tramark.suspects.schema import conventions_from, template_from

    limits: dict[str, Any] = {"seconds": seconds, "memory": None if memory is None else int(memory * 2**30)}
    return Asking(
        model,
        conventions_from(read_json(conventions), str(conventions)) if conventions else None,
        template_from(read_json(template), str(template)) if template else None,
        HttpOptions(rate=rate, token_env=token_env, budget=budget, headers=from_environment(header or ())),
        Limits(**{name: value for name, value in limits.items() if value is not None}),
    )


@dataclass(frozen=True)
class Desk:
    """An open vault, and how its suspects are asked."""

    vault: "Vault"
    keyring: "Keyring"
    asking: Asking
    known: dict[str, Any]

    @property
    def named(self) -> "ModelName | None":
        """The name of the function that makes the model of a file of weights."""
        from tramark.cli.zoo import model_factory

        return model_factory(self.asking.model, self.keyring, self.known)

    def adapter(self, target: str, *, vouched: bool = False) -> "Adapter":
        """The suspect at a path or URL. Files that the user vouches for need no processes of their own."""
        from tramark.suspects.conventions import Conventions
        from tramark.suspects.files import open_suspect

        remote, how = "://" in target, self.asking
        named = None if remote else self.named
        return open_suspect(
            target,
            conventions=replace(how.conventions or Conventions(), prepare=self.keyring.source.prepare),
            model=named.build if named and vouched else named,
            served=how.model if remote else None,
            template=how.template,
            http=how.http,
            limits=how.limits,
        )


@contextmanager
def desk_at(place: Path, asking: Asking, key_file: Path | None, data_dir: Path | None) -> Iterator[Desk]:
    """The desk of the vault at a path, or in the run at that path."""
    from tramark.lab.simulation.run import MODEL

    with open_vault(place, key_file, readonly=True) as vault:
        keyring = keyring_of(vault, data_dir)
        yield Desk(vault, keyring, asking, json.loads(vault.get(MODEL)) if MODEL in vault.names else {})
