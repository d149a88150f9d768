"""What each library's requests must give, in double precision, and requests drawn from their declarations."""
