"""What a tensor dimension can be made of, and the unification that finds out."""
