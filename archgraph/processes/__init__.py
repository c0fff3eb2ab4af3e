"""Worker processes: calls side by side, with deadlines and limits of memory.

In: a function and items. Out: each item with its result or ``Died``, in the order of the items.

1. ``workers`` decides where calls are made. Short ones stay in this process, unless processes were
   asked for. Workers are forked where that is safe: they are ready in 0.02 s and share data and
   models. Beside an accelerator, on other systems and beside threads of other libraries Python's
   fork server starts them; it has imported torch and used neither threads nor a device.
2. ``process``: a worker has one thread and makes one call after the other. A deadline counts from
   the beginning of a call; ``memory`` is what a call may use beside what its process has.
3. ``items``: what is sent is pickled, as it comes from the run itself. What comes back is written
   by :mod:`archgraph.states.wire`, so that nothing a worker sends is executed.
4. ``isolation``: the random numbers, modes and threads that a client begins with. ``reasons``: why
   a call failed, for a record.

- Bits do not depend on the number of workers: clients compute on one thread and begin alike, and
  results are taken in the order of the items.
- A worker that died or exceeded a limit is replaced, and the other calls go on. Programs are
  trusted with all further settings of their process.
- A worker ends with its parent.
"""
