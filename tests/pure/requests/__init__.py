"""Declarations, plans, programs and graphs: whatever holds for each library."""
