"""The engine of `bench`: a suite, the cells that it asks for, the processes that do them, and the files that are made of their records."""
