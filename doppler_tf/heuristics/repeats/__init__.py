"""Graphs in which something repeats: counterparts, shorter graphs, and the search that ties them."""
