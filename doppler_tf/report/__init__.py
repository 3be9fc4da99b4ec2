"""Tables, pictures and pages for people, and the figures reported of a trace."""
