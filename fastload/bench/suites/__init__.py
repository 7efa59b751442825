"""One suite of measurements a file."""
