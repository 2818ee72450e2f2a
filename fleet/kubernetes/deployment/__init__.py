"""A fleet's Deployment and its pods, while a manager acts."""
