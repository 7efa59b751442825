"""Boxes, masks and keypoints follow the pixels that they describe."""
