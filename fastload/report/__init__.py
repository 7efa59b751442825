"""What a loader's measurements mean: the verdict, the report that shows it, and pictures of the time."""
