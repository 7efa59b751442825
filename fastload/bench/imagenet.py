"""ImageNet's mean and standard deviation, as fractions of the full scale."""

MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)
