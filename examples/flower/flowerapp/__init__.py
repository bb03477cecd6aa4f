"""A Flower app whose every node gets a model of its own."""
