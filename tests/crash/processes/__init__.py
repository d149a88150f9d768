"""Any other process that ends or is stopped: supervisor, client, zygote; and what is left behind."""
