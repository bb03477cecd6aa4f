"""The clients' side of a federation: how data is split among them, how they train, and a simulator."""
