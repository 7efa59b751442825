"""The state of a ``PrefetchLoader``: where it is taken, and how a loader goes on from it."""
