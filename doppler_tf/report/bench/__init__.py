"""What a `bench` found: rows, tables, the page and its pictures."""
