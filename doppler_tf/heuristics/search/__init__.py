"""Searches that change an assignment again and again: the walk, its moves, and the searches that walk."""
