"""Export of rewritten models to the libraries that they come from: transformers, timm and PEFT.

The input is a rewritten graph, its state, and the original model: a transformers model or its
folder, or the name of a timm model. The output is a folder for ``from_pretrained``, a file for
``timm.create_model``, or a folder of PEFT adapters.

1. ``search`` finds a configuration with which the model's class has the shapes of the network. It
   changes one number of the configuration at a time, constructs the class on the meta device, and
   counts the dimensions that still differ.
2. ``fit`` selects the first of these configurations with which the class also computes the same.
   For a model in memory, the results are compared with random weights (``compare``). A model in a
   folder may not fit into memory, so it is compared operator by operator (``graph_comparison``).
3. ``transformers_folder`` and ``timm_model`` write the model. ``folder_weights`` maps the names in
   the files of a folder to those of its model, and ``shards`` copies rows from file to file.
   ``peft_folder`` writes and reads adapters, and ``peft_names`` maps names in a PEFT model.

- The meaning of configuration entries is not stored in a table, which would need a row for each of
  the 400 classes of transformers.
- Equal shapes are not sufficient. For example, no shape of a BERT depends on the number of heads.
- Layers are numbered without gaps. Tensors that forward does not read come from the original.
- When a folder is copied to another folder, only the rows of weights that are being copied are in
  memory.

transformers and timm are imported by the functions that need them. PEFT is not imported; only its
file format is used.
"""
