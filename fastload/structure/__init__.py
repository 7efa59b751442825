"""What a batch is made of: its tree of containers, and its images."""
