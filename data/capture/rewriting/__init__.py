"""A concrete function becomes a program, rewritten until it can be cut."""
