"""What groups do: status, rebalances, top."""
