"""What is shown to persons: tables, pictures, pages; and what is said of a trace."""
