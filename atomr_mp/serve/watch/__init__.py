"""The page that shows a running pool: one observer for all who look on, and what it tells."""
