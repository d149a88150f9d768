"""Collectives on GPUs: mailboxes that the members of a world map from each other, and kernels that meet in them.

`engine` is a process's place in one world, as `worlds.engines` makes it. `source` has the kernels' text and how they
agree, `kernels` compiles and loads them, `launch` puts them on streams. `layout` says what lies where in a `mailbox`,
in the table that kernels read, and on the page that they share with the host. `exchange` keeps these for one world, and
joins epochs. `collectives` are what `OwnWorld` offers, on `arrays` of CuPy, torch or NumPy. `meeting` raises on the
host what kernels have found, and `watch` looks on while they wait.
"""
