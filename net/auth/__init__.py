"""Who a peer is: how a caller shows it, and how a server checks it."""
