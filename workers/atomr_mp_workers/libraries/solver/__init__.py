"""Dense solvers and factorisations."""
