"""The operator session: questions and orders to a supervisor, without any calls."""
