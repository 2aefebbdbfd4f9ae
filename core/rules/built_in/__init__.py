"""The update rules, one file each. ``known_rules.py`` finds them by name."""
