"""Ask a suspect, and say whose mark it carries."""
