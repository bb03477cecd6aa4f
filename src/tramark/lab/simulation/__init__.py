"""A federation on one machine: clients with their samples around a server."""
