"""tramark on Flower: a strategy that holds another one, and gives every node a model of its own."""

from tramark.integrations.flower.nodes import identify_nodes, registered_names
from tramark.integrations.flower.strategy import TraMarkStrategy

__all__ = ["TraMarkStrategy", "identify_nodes", "registered_names"]
