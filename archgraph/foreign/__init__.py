"""Folders of other libraries: a network goes back to where its model came from, and adapters too.

In: a rewritten graph, its state, and the original: a model of transformers or its folder, or a name
in timm. Out: a folder for ``from_pretrained``, a file for ``timm.create_model``, a folder for PEFT.

1. ``search``: which arguments of the class give these shapes? The class is asked: its network is
   made on the meta device, numbers in its configuration are changed one after the other, and
   dimensions that still differ are counted.
2. ``fit``: of the arguments with these shapes the first that compute the same. A model in memory is
   compared by results on random weights (``compare``); one in a folder, which may not fit into
   memory, operator by operator (``graph_comparison``).
3. ``transformers_folder`` and ``timm_model`` write it. ``folder_weights`` knows the names in a
   folder, ``shards`` copies rows from file to file. ``peft_folder`` writes and reads adapters,
   found by form; ``peft_names`` knows the names that tensors have in a model of PEFT's.

- There is no table of what entries of configurations mean: it would need a row for each of 400
  classes of transformers and change with each version.
- Shapes are not enough: a BERT has no tensor in which its number of heads shows.
- Layers are numbered without gaps. What forward does not read comes from the original.
- From folder to folder only the rows that are being copied are in memory.

transformers and timm are imported by the functions that need them; of PEFT only its format is used.
"""
