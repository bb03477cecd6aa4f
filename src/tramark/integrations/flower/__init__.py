"""tramark on Flower."""
