"""Messages, one channel a file. Pure."""
