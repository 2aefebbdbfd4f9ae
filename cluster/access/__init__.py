"""Who may do what: principals, rights and leadership. Pure."""
