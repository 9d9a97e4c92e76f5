"""A client's work in a round."""
