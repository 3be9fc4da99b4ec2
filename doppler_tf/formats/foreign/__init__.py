"""Task graphs in the formats of others, each in a file of its own: read, and where that is simple written."""
