"""Costs of a graph, measured on the devices at hand."""
