"""A ps's part in a cut: the values of all ps at one moment, while workers go on pushing."""
