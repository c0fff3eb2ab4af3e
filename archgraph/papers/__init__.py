"""What the analyses of the papers need and a run does not: similarity, scales, figures."""
