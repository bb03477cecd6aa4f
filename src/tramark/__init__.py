"""tramark: find out who leaked a federation's model."""

from tramark.keys import Key, Keyring
from tramark.server import RoundReport, TraMark

__version__ = "0.1.0"
__all__ = ["Key", "Keyring", "RoundReport", "TraMark", "__version__"]
