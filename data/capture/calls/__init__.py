"""What a user gives, as one concrete function, and how it is called."""
