"""What is measured: fastload, its peers, and what they feed."""
