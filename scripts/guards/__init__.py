"""What code and pages ask of each other: `scripts/check` runs these with pytest. None starts a process."""
