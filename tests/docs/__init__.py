"""A package, so that mypy can tell its modules from those of the same name in other folders."""
