"""The server's processes: a parent that owns the listening socket, and front ends that answer.

The parent (`parent`) opens the socket (`listening`), starts the front ends by a plan (`plan`), and starts them again
(`backoff`). It keeps the pool (`pool_keeper`; `joined_pool_keeper` for a pool of somebody else) and tells of it in the
log: `pool_story` tells the pool's events, `supervisor_watch` a supervisor that does not answer, `child_output` what the
other processes write. With `--watch` it reloads actors when their files are saved (`saved_files`).

A front end (`front_end`) joins the pool, and answers by `server`: `connection` has a client's bytes, `request` one
request and its answer, `timer` and `unread_answers` the bounds of both, `middleware` what users put around it all.
"""
