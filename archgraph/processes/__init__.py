"""Worker processes: parallel calls, with deadlines and limits on memory.

Input: a function and items. Output: each item with the function's result, or with ``Died`` if the
call failed, in the order of the items.

1. ``workers`` chooses the process of each call. Short calls run in this process, unless worker
   processes were requested. Workers are forked where forking is safe: they start in 0.02 s, and
   share data and models with this process. With an accelerator, outside Linux, or if other
   libraries run threads, Python's fork server starts the workers. The fork server has imported
   torch, but uses neither threads nor a device.
2. ``process`` is a worker: it has one thread and runs one call at a time. A deadline counts from
   the beginning of a call. ``memory`` limits the memory of a call, in addition to that of its
   process.
3. ``items`` serialises items for workers. Items are pickled, since they come from the run itself.
   Results use :mod:`archgraph.states.wire`, so that no code in a worker's result is executed.
4. ``isolation`` sets the random numbers, modes and threads with which a client begins. ``reasons``
   formats the reason of a failed call for a run's record.

- Results are bit-identical for any number of workers: clients compute on one thread and begin in
  the same state, and results are yielded in the order of the items.
- A worker that died or exceeded a limit is replaced, and the other calls continue. Programs must
  not change other settings of their process.
- A worker ends when its parent process ends.
"""
