"""Heuristics that construct an assignment, and what they share."""
