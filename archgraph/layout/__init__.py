"""What a dimension can be: layouts, and their unification, in ``layouts``."""
