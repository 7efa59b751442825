"""Image files to pixels, in the training process."""
