"""What the product does, as Python functions: the words of their arguments are the options of the commands. They may import every room."""
