"""Workers that end, hang, are replaced, and their standbys."""
