"""The local backend: jobs and actors in child processes, or in threads of this one.

One thread, the *hub*, owns all state of all process-mode clients, starts every child and reads every pipe and socket,
so there are no locks and no races between them. The pieces, from the bottom up: ``frames`` (messages on a socket),
``hub`` (the event loop), ``guardian`` (kills everything when the driver dies), ``child`` (one child process),
``worker_main`` (what runs in it), ``pool`` (jobs over children), ``actors`` (calls and groups), ``threads`` (the
thread mode). What other backends use too lies one level up: ``_codec``, ``_future``, ``_job``, ``_logs``.
"""
