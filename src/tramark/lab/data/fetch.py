"""How the files of a data set come from outside: from the Hugging Face hub, or from an npm or Debian
package by the machine's own client. Each fetcher gives the files' contents by their base names, or an
OSError that says why."""

import io
import subprocess
import tarfile
import tempfile
from pathlib import Path

from tramark.lab.data.decode import Files

# A slow line needs minutes for CIFAR-10's 139 MB; a dead one is noticed by the clients themselves.
DOWNLOAD_SECONDS = 900


PROBE_SECONDS = 3


def hub(repository: str, pattern: str) -> Files:
    """The files of a hub data set that match the pattern, from the hub or from its client's own cache."""
    from huggingface_hub import constants, get_session, snapshot_download

    # Its client tries for half a minute before it gives up: one short look decides. Whatever goes wrong in it
    # (what is raised depends on the client's version and on HF_HUB_OFFLINE), the hub is not to be had now.
    try:
        get_session().head(constants.ENDPOINT, timeout=PROBE_SECONDS)
        unreachable = ""
    except Exception as error:
        unreachable = str(error).strip() or type(error).__name__
    try:
        folder = snapshot_download(
            repository, repo_type="dataset", allow_patterns=pattern, local_files_only=bool(unreachable)
        )
    except Exception as error:
        raise OSError(f"unreachable, {unreachable}" if unreachable else str(error)) from error
    return {path.name: path.read_bytes() for path in Path(folder).glob(pattern)}


def npm(package: str) -> Files:
    """The files of an npm package, given as name@version."""
    with tempfile.TemporaryDirectory() as folder:
        run(["npm", "pack", "--loglevel=error", "--ignore-scripts", package], folder)
        (archive,) = Path(folder).glob("*.tgz")
        return untar(archive.read_bytes())


def debian(package: str) -> Files:
    """The files of a Debian package; it is not installed."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            run(["apt-get", "download", package], folder)
        except OSError as error:
            if "Unable to locate package" not in str(error):
                raise
            run(["apt-get", "update"], folder)
            run(["apt-get", "download", package], folder)
        (archive,) = Path(folder).glob("*.deb")
        return untar(run(["dpkg-deb", "--fsys-tarfile", archive.name], folder))


def run(command: list[str], folder: str) -> bytes:
    """What the command prints when run in this folder; if it fails, its first complaint as the error."""
    what = " ".join(command[:2])
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, timeout=DOWNLOAD_SECONDS, check=False)
    except FileNotFoundError:
        raise OSError(f"there is no {command[0]} on this machine") from None
    except subprocess.TimeoutExpired:
        raise OSError(f"{what} took more than {DOWNLOAD_SECONDS} seconds") from None
    if done.returncode:
        said = [line for line in done.stderr.decode(errors="replace").splitlines() if line[:2] != "W:"]
        raise OSError(f"{what} failed: {said[0] if said else f'exit code {done.returncode}'}")
    return done.stdout


def untar(data: bytes) -> Files:
    """The files in a tar archive by their base names, read without being written to disk."""
    try:
        with tarfile.open(fileobj=io.BytesIO(data)) as archive:
            return {
                Path(member.name).name: file.read()
                for member in archive
                if member.isfile() and (file := archive.extractfile(member))
            }
    except tarfile.TarError as error:
        raise OSError(f"not a whole tar archive: {error}") from error
