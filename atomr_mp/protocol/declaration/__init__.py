"""Declarations of libraries' requests, and all that follows from them. Pure.

A request is a frozen struct whose fields say everything about it once: the arrays that it reads and writes, their
shapes, element types and strides (`arguments`, `strides`), and its parameters. From the declaration follow the sizes
(`shapes`), the check that client and worker make before any library sees a request (`checks`), the outputs that a
caller has left out, and the key of a library's plan. Documentation, the clients' methods and the tests' cases are
made from it too.
"""
