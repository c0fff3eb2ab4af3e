"""Worker processes: calls side by side, with deadlines and limits of memory.

Input: a function and items. Output: each item with its result or ``Died``, in the order of the
items.

1. ``workers`` decides where calls are made. Short ones stay in this process, unless processes were
   requested. Workers are forked where that is safe: they are ready in 0.02 s and share data and
   models. With an accelerator, on other systems and with threads of other libraries Python's fork
   server starts them; it has imported torch and used neither threads nor a device.
2. ``process``: a worker has one thread and makes one call after the other. A deadline counts from
   the beginning of a call; ``memory`` is the limit of a call in addition to the memory of its
   process.
3. ``items``: sent items are pickled, since they come from the run itself. Results are written by
   :mod:`archgraph.states.wire`, so that nothing a worker sends is executed.
4. ``isolation``: the random numbers, modes and threads with which a client begins. ``reasons``: why
   a call failed, for a record.

- Bits do not depend on the number of workers: clients compute on one thread and begin in the same
  state, and results are taken in the order of the items.
- A worker that died or exceeded a limit is replaced, and the other calls continue. Programs are
  trusted with all other settings of their process.
- A worker ends with its parent.
"""
