"""What every request passes through: access, limits and delivery."""
