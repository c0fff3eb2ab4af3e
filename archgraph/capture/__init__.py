"""Capture: from an ``nn.Module`` to one graph for both modes, by export and passes.

A capture takes a model and example inputs, and returns ``Traced``: a graph and copies of the
weights. ``trace`` calls:

1. ``unseen`` looks on the model itself for things that a capture does not show: hooks, extra state,
   leaves with custom arithmetic; after step 2 also memory that leaves share.
2. ``export``, in evaluation, runs ``torch.export`` with open axes (``examples``), isolated from the
   caller's settings (``surroundings``). ``branches`` decides an ``if`` that has only one possible
   outcome, ``ranges`` finds the open sizes for which the program is valid, and ``draws`` whether it
   depends on random numbers of Python or NumPy. ``failures`` explains why an export failed, and
   knows settings to try instead.
3. Passes over a ``tape`` of calls: ``inline``, ``fold``, ``casts``, ``writes``, ``recurrent``. Then
   ``spell`` converts calls to nodes, and ``signature`` adds the trees of inputs and outputs.
4. ``modes``: if only norms and dropouts of ``torch.nn`` read ``training``, one capture has both
   modes. Otherwise steps 2 and 3 are repeated in train mode; ``reconcile`` matches the operators of
   both captures in order, and differences become a ``Mode``.
5. ``verify`` runs the model and the built module side by side. After one evaluation with numbers,
   all calls run without numbers (``formulas``): equal formulas mean equal results, gradients and
   buffers for all values. If they differ, or if forward reads numbers, all calls run with numbers.

A graph with other results, gradients or training steps than the model is refused: each such finding
is a ``TraceError``, which ``trace`` raises (``strict=False``: a warning and a note). Any other
omission from the graph is a note. Afterwards the model, gradients, modes and random numbers are
restored (``restored``). Each pass states its requirements and guarantees in its file.
"""
