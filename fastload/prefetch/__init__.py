"""One pass over the wrapped loader, prepared ahead of the consumer in bounded memory."""
