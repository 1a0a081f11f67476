"""The local backend: jobs and actors in child processes, or in threads of this one.

One thread, the *hub*, owns all state of all process-mode clients, starts every child and reads every pipe and socket,
so there are no locks and no races between them. The pieces, from the bottom up: ``frames`` (messages on a socket),
``codec`` (values and exceptions as bytes), ``hub`` (the event loop), ``guardian`` (kills everything when the driver
dies), ``child`` (one child process), ``worker_main`` (what runs in it), ``jobs`` and ``pool`` (jobs over children),
``actors`` (calls and groups), ``threads`` (the thread mode).
"""
