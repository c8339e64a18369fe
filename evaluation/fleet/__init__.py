"""What several devices and several machines gain, cost and survive."""
