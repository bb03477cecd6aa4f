"""The data sets that the studies train on, each of them a plain `Dataset` of tensors in memory."""

from tramark.data.dataset import Dataset
from tramark.data.sources import DataError, available, get, load

__all__ = ["DataError", "Dataset", "available", "get", "load"]
