"""Servers of other frameworks that issue marked models."""
