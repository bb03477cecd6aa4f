"""tramark: find out who leaked a federation's model."""

from tramark.keys import Key, Keyring
from tramark.server import RoundReport, TraMark
from tramark.tracing import Verdict, trace
from tramark.weights import extend_head

__version__ = "0.1.0"
__all__ = ["Key", "Keyring", "RoundReport", "TraMark", "Verdict", "__version__", "extend_head", "trace"]
