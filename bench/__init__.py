"""Measurements, always as ratios against a peer in the same run. `./dev bench [NAME…]`."""
