"""What every suite needs: how to measure, check, store and draw."""
