"""What a person reads about a trace: a page with charts."""
