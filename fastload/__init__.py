"""One line around the PyTorch ``DataLoader`` you already have."""

__version__ = "0.1.0"
