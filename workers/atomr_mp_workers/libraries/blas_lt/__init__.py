"""Products of matrices with epilogues."""
