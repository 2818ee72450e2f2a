"""What people and machines read: metrics, rules, dashboards, pictures."""
