"""The server's work in a round: cohorts, reducing uploads, the step of the model."""
