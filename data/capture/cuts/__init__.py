"""A program is cut into tiles and pieces, and becomes a graph with its model folder."""
