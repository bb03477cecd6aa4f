"""The data sets that the studies train on, each of them a plain `Dataset` of tensors in memory."""

from tramark.errors import DataError
from tramark.lab.data.dataset import Dataset
from tramark.lab.data.sources import available, find, get, load, sentences

__all__ = ["DataError", "Dataset", "available", "find", "get", "load", "sentences"]
