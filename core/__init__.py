"""Values and small mechanisms every room may use: errors, arrays, codec, settings. No network."""
