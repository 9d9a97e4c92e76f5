"""``loop=batched``: the steps and tests of many clients at once, as one stacked model."""
