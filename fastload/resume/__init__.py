"""``state_dict`` of a ``PrefetchLoader``: where in an epoch it was taken, and how a loader resumes there."""
