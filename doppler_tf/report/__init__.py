"""What is shown to persons: tables, Gantt pictures."""
