"""The parts of clusters on Ray that need no cluster."""
