"""Image files to pixels, in the training process: on the device where it can decode, on the CPU elsewhere."""
