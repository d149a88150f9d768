"""Documents, examples, the demo and scripts, run as a reader would."""
