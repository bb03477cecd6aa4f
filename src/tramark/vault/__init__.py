"""The sealed directory in which keyring, server state and issue log live."""
