"""tramark on NVIDIA FLARE: one server component, which gives every site a model of its own."""

from tramark.integrations.nvflare.component import TraMarkServer
from tramark.integrations.nvflare.job import add_tramark

__all__ = ["TraMarkServer", "add_tramark"]
