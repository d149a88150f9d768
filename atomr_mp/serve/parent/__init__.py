"""The server's parent process: owns the listening socket and the pool, and starts the front ends.

The parent (`parent`) opens the socket (`listening`), and starts the front ends again if they end (`backoff`). It keeps
the pool (`pool_keeper`) and tells of it in the log: `pool_story` tells the pool's events, `supervisor_watch` a
supervisor that does not answer, `child_output` what the other processes write. With `--watch` it reloads actors when
their files are saved (`saved_files`).
"""
