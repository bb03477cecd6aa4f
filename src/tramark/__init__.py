"""tramark: find out who leaked a federation's model."""

__version__ = "0.1.0"
