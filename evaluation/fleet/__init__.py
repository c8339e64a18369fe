"""What fleets, several devices and stores of results gain, cost and survive."""
