"""The page that shows a running pool: one observer for all viewers, and the data that it shows."""
