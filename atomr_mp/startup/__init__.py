"""From settings to a running pool: the configuration, the hardware, the launch of a supervisor."""
