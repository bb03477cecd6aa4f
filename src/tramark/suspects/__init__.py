"""Anything that answers questions: modules, files, servers."""
