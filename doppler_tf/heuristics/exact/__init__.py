"""CP-SAT: the model of a problem, and the search on it."""
