"""The laboratory: data, models, simulation, methods and attacks. Never needed to run or trace a federation."""
