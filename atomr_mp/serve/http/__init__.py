"""HTTP as the routes see it: one exchange, its limits, who may ask, and errors as answers."""
