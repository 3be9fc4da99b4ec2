"""The page of a training run: one file with tables, data, and a script that draws pictures from the data."""
