"""Programs and actors that run in processes of their own while something is measured."""
