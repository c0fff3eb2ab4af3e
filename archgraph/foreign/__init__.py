"""Export to the libraries that models come from: transformers, timm, and PEFT for adapters.

Input: a rewritten graph, its state, and the original: a model of transformers or its folder, or a
name in timm. Output: a folder for ``from_pretrained``, a file for ``timm.create_model``, a folder
for PEFT.

1. ``search`` finds arguments of the class that give the network's shapes. It constructs the class
   on the meta device, changes numbers in its configuration one at a time, and counts the
   dimensions that still differ.
2. ``fit`` takes the first of these arguments with which the class computes the same. A model in
   memory is compared by its results with random weights (``compare``); a model in a folder, which
   may not fit into memory, operator by operator (``graph_comparison``).
3. ``transformers_folder`` and ``timm_model`` write it. ``folder_weights`` resolves the names in a
   folder, ``shards`` copies rows from file to file. ``peft_folder`` writes and reads adapters,
   which it recognises by their operators; ``peft_names`` resolves the names in a PEFT model.

- There is no table of the meaning of configuration entries: it would need a row for each of 400
  classes of transformers, and would change with each version.
- Shapes are not enough: no tensor of a BERT depends on its number of heads.
- Layers are numbered without gaps. Tensors that forward does not read come from the original.
- When copying from folder to folder, only the current rows are in memory.

transformers and timm are imported by the functions that need them. PEFT is not imported: only its
file format is used.
"""
