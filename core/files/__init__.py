"""Files and folders that appear whole, are trusted and are removed safely."""
