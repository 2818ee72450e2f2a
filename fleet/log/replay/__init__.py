"""What a group's records come to: members, rebalances with their causes, what each cost. Pure."""
