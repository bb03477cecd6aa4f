"""How marks are made: in closed form (the default), or by gradient steps (the paper's way)."""
