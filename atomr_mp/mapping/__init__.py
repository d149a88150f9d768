"""`Pool.map`: many items through one method, and the journal that survives a crash."""
