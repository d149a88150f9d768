"""The supervisor's decisions and tables."""
