"""HTTP as the routes see it: one exchange, its limits, access control, and errors as answers."""
