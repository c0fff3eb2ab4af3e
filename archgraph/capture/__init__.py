"""From an ``nn.Module`` to a graph: export, passes, and one graph for both modes.

In: a model and example inputs. Out: ``Traced``, a graph and copies of the weights. ``trace`` calls:

1. ``unseen``: what no capture shows is looked for on the model itself: hooks, extra state, leaves
   with arithmetic of their own; after step 2 also memory that leaves share.
2. ``export``, in evaluation: ``torch.export`` with open axes (``examples``), cut off from what the
   caller has switched on (``surroundings``). ``branches`` decides an ``if`` that can go only one
   way, ``ranges`` finds the open sizes for which the program holds, ``draws`` whether Python's or
   NumPy's random numbers change it. ``failures`` says why an export failed, and knows settings to
   try instead.
3. Passes over a ``tape`` of calls: ``inline``, ``fold``, ``casts``, ``writes``, ``recurrent``. Then
   ``spell`` makes nodes of it, and ``signature`` the trees of inputs and outputs.
4. ``modes``: if only norms and dropouts of ``torch.nn`` read ``training``, one capture has both
   modes. Else 2 and 3 again in train mode; ``reconcile`` matches the operators of both captures in
   order, and what differs becomes a ``Mode``.
5. ``verify``: model and built module run side by side. After one evaluation with numbers, all calls
   run without them (``formulas``): equal formulas are equal results, gradients and buffers,
   whatever the values. If they differ, or forward looks at numbers, all calls run with numbers.

A graph that would give other results, gradients or training steps is refused: each such finding is
a ``TraceError``, which ``trace`` raises (``strict=False``: a warning and a note). Everything else
that the graph leaves out is a note. Model, gradients, modes and random numbers are afterwards as
they were (``restored``), and each pass says in its file what it needs and promises.
"""
