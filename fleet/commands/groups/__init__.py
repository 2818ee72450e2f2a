"""What groups do: status, rebalances."""
