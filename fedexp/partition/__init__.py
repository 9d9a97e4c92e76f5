"""Who owns which samples: pure functions of labels and a generator, free of torch."""
