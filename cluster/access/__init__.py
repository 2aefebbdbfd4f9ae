"""Access: principals, rights and leadership. Pure."""
