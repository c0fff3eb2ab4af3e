"""Capture an ``nn.Module`` as a graph for both train and eval mode.

``trace`` takes a model and example inputs, and returns ``Traced``: a graph and copies of the
weights. It uses the other modules of this package:

1. ``unseen`` searches the model for properties that a capture does not show: hooks, extra state,
   parameters with custom arithmetic and, after step 2, memory that parameters share.
2. ``export`` runs ``torch.export`` in eval mode with open axes (``examples``), isolated from the
   caller's settings (``surroundings``). ``branches`` decides an ``if`` that has only one possible
   outcome. ``ranges`` finds the open sizes for which the program is valid. ``draws`` finds out if
   the program depends on random numbers of Python or NumPy. If an export fails, ``failures``
   explains the reason and finds settings to try instead.
3. Passes transform the ``tape``, which is the list of calls of the exported program: ``inline``,
   ``fold``, ``casts``, ``writes``, ``recurrent``. Then ``spell`` converts calls to nodes, and
   ``signature`` adds the structure of inputs and outputs.
4. ``modes`` records which code reads ``training``. If only norms and dropouts of ``torch.nn`` read
   it, one capture is enough for both modes. Otherwise steps 2 and 3 are repeated in train mode.
   ``reconcile`` then matches the operators of both captures in order, and differences become a
   ``Mode``.
5. ``verify`` runs the model and the built module side by side. After one evaluation with numbers,
   all calls run on symbolic ``formulas`` instead of numbers. Equal formulas mean that results,
   gradients and buffers are equal for all values. If formulas differ, or if forward reads the
   values of tensors, all calls run with numbers.

If the graph would have other results, gradients or training steps than the model, ``trace`` raises
a ``TraceError``, or with ``strict=False`` warns and adds a note. For anything else that the graph
does not contain, ``trace`` adds a note. Finally it restores the model, gradients, modes and random
numbers (``restored``). The file of each pass describes its requirements and guarantees.
"""
