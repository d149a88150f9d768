"""Programs: many requests run as one."""
