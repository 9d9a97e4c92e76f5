"""What methods are made of: components, the algorithm they compile to, state, views, randomness."""
