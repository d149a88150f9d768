"""Messages, values, layouts, framing and the board."""
