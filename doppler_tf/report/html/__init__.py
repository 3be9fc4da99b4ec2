"""The page of a training run: one file with tables, and pictures that a script of ours draws from the data in it."""
