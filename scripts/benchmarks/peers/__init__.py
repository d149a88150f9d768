"""Others of the runtime's kind: one file each, which imports its package late. Used as their documentation says."""
