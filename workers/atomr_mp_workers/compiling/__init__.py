"""Compiles users' CUDA sources where they can do no harm, and keeps the results on disk.

A source can end NVRTC's process, keep it busy for ever, and have it read files. So:

- **Each job has a process of its own** (`process/`), which is started by exec, has no CUDA context, and does one job.
  `CompilerProcess` starts it and waits for its answer; `Compiler` has at most two at a time, and threads for them, so
  that the worker's loop never waits. Others wait in `WorkTurns`, whose owners take turns, and have a bounded share.
- **The process is shut in before it reads the source.** It has loaded the libraries by then. Landlock leaves it the
  toolkit's headers to read, and a filter of system calls keeps it away from sockets and other processes. What the
  source may include besides comes with it.
- **Its time is processor time**, since it runs only when nobody else wants the processor. The kernel ends it with the
  worker, and the end of a pipe does.
- **Nothing that it answers is believed.** Lengths, types and names are checked. Of its log only messages are kept, not
  the lines of the files that they are about: the caller has the source, and can add them.
- **Compiled code is kept in a folder of the user's** (`CodeCache`), for all workers. The key covers whatever the
  result depends on, an entry that is not intact is a miss, and one that was being loaded when its worker died is set
  aside.

A caller makes a job (`jobs`) and submits it with a deadline to a `Compiler`, which it makes of `toolkits.find`, a
`CodeCache`, `CompileLimits` and the answer of `compiler_process.confines`. The future's result has the code, the
lowered names and the key; the code is loaded inside `with cache.loading(key)`.
"""
