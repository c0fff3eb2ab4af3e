"""What a federated method is: world, work, objectives, strategies, families."""
