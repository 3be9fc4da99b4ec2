"""The engine of `bench`: the suite, its cells, the processes that run them, and the files made from their records."""
